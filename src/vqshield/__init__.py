"""vqshield shields an image classifier by vector quantization, and measures what the shield is worth.

>>> import torch
>>> import vqshield as vq
>>> from vqshield.classifiers import small_cifar10
>>> from vqshield.data import sample
>>> classifier, photos = small_cifar10(), sample(8)
>>> images, labels = photos.floats(), photos.labels
>>> model = vq.defend(classifier, "swrd", size=3, seed=0)
>>> model(images).shape
torch.Size([8, 10])

The examples in the docstrings begin where this one ends: torch, vq, classifier, images and labels are these.
"""

from vqshield import attacks, certificates, defenses, surrogates
from vqshield.defended import Defended, defend
from vqshield.defenses import PRD, SWRD, Defense, GaussianNoise, Quantizer, RandDisc, list_defenses

__version__ = "0.1.0"

__all__ = [
    "PRD",
    "SWRD",
    "Defended",
    "Defense",
    "GaussianNoise",
    "Quantizer",
    "RandDisc",
    "attacks",
    "certificates",
    "defend",
    "defenses",
    "list_defenses",
    "surrogates",
]
