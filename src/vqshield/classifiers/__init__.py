"""Classifiers: networks by name, weights from safetensors, and a small one that comes with the package."""

from importlib import resources

import torch
from torch import nn

from vqshield.classifiers.base import Network
from vqshield.classifiers.folding import folded
from vqshield.classifiers.loading import load_classifier, save_classifier
from vqshield.classifiers.normalised import Normalised
from vqshield.classifiers.registry import build, classifiers

__all__ = [
    "Network",
    "Normalised",
    "build",
    "classifiers",
    "folded",
    "load_classifier",
    "save_classifier",
    "small_cifar10",
]


def small_cifar10(device: str = "cpu") -> nn.Module:
    """Return the bundled CIFAR-10 classifier: images in [0,1] -> logits, frozen, in eval mode.

    Norms are folded and weights laid out channels-last: the fastest form on a CPU.
    """
    asset = resources.files("vqshield.classifiers") / "assets" / "small-cifar10.safetensors"
    with resources.as_file(asset) as path:
        classifier = folded(load_classifier(path, device=device))
    return classifier.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]
