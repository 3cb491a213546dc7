"""The CIFAR-10 classifiers that come with the package."""

from contextlib import AbstractContextManager
from importlib import resources
from pathlib import Path

import torch

from vqshield.classifiers.folding import fastest_form
from vqshield.classifiers.loading import read_classifier
from vqshield.classifiers.normalised import Normalised

PLAIN = "small-cifar10"
HARDENED = "small-cifar10-hardened"


def small_cifar10(device: str | torch.device = "cpu") -> Normalised:
    """The bundled CIFAR-10 classifier: images in [0,1] -> logits, frozen, in eval mode.

    Norms are folded and weights laid out channels-last: the fastest form on a CPU. Gradients towards images
    are contiguous all the same.
    """
    return _fast(PLAIN, device)


def small_cifar10_hardened(device: str | torch.device = "cpu") -> Normalised:
    """The same network fine-tuned behind ``vq.SWRD.hardened("cifar10")``, for use behind it alone."""
    return _fast(HARDENED, device)


def bundled_as_trained(name: str, device: str | torch.device = "cpu") -> Normalised:
    """A bundled classifier with its batch norms, for training: folded ones cannot be trained on."""
    with bundled_file(name) as path:
        return read_classifier(path, None, device)


def bundled_file(name: str) -> AbstractContextManager[Path]:
    """The file of a bundled classifier."""
    return resources.as_file(resources.files("vqshield.classifiers") / "assets" / f"{name}.safetensors")


def _fast(name: str, device: str | torch.device) -> Normalised:
    classifier = fastest_form(bundled_as_trained(name, device))
    assert isinstance(classifier, Normalised)
    return classifier
