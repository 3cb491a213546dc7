"""Shield images among the augmentations of kornia, and repeat a call from its parameters.

pip install ".[kornia]" -c constraints.txt
python examples/shield_with_kornia.py
"""

import torch
from kornia.augmentation import AugmentationSequential, RandomHorizontalFlip

from vqshield.data import sample
from vqshield.integrations.kornia import ShieldAugmentation

augment = AugmentationSequential(RandomHorizontalFlip(p=0.5), ShieldAugmentation("swrd:size=3", seed=0))
images = sample(8).floats()
first = augment(images)
again = augment(images, params=augment._params)
print(f"{len(first)} images, repeated exactly: {torch.equal(first, again)}")
