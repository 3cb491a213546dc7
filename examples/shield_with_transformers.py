"""A shield inside the image processor of a transformers pipeline; random weights, nothing is downloaded.

pip install ".[transformers]" -c constraints.txt
python examples/shield_with_transformers.py
"""

from PIL import Image
from transformers import ViTConfig, ViTForImageClassification, ViTImageProcessor, pipeline

from vqshield.data import sample
from vqshield.integrations.transformers import shielded_processor

config = ViTConfig(image_size=32, patch_size=8, hidden_size=32, num_hidden_layers=2, num_attention_heads=2)
processor = shielded_processor(ViTImageProcessor(size={"height": 32, "width": 32}), "swrd:size=3", seed=0)
classify = pipeline(
    "image-classification", model=ViTForImageClassification(config).eval(), image_processor=processor
)
pixels = sample(1).floats()[0].mul(255).byte().permute(1, 2, 0).numpy()
print(classify(Image.fromarray(pixels)))
