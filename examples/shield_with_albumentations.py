"""Shield images (h, w, q) of bytes by a transform of albumentations.

pip install ".[albumentations]" -c constraints.txt
python examples/shield_with_albumentations.py
"""

import albumentations
import numpy as np

from vqshield.data import sample
from vqshield.integrations.albumentations import ShieldTransform

transform = albumentations.Compose(
    [albumentations.HorizontalFlip(p=0.5), ShieldTransform("prd:codes=4", seed=0)]
)
for image in sample(4).floats():
    pixels = image.mul(255).byte().permute(1, 2, 0).numpy()
    found = transform(image=pixels, mask=pixels[..., 0])["image"]
    print(f"{len(np.unique(pixels.reshape(-1, 3), axis=0))} colours became", end=" ")
    print(len(np.unique(found.reshape(-1, 3), axis=0)))
