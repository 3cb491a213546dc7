"""A model of timm behind a shield, with its own normalisation inside; random weights, no download.

pip install ".[timm]" -c constraints.txt
python examples/shield_with_timm.py
"""

import timm
import torch
from PIL import Image

from vqshield.data import sample
from vqshield.integrations.timm import defended_timm

network = timm.create_model("resnet10t", pretrained=False, num_classes=10).eval()
model, transform = defended_timm(network, "swrd:size=3", seed=0)
pixels = sample(1).floats()[0].mul(255).byte().permute(1, 2, 0).numpy()
with torch.no_grad():
    logits = model(transform(Image.fromarray(pixels))[None])
print(f"{transform}\nlogits of shape {tuple(logits.shape)}")
