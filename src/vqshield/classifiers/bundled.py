"""The CIFAR-10 classifier that comes with the package."""

from importlib import resources

import torch

from vqshield.classifiers.folding import folded
from vqshield.classifiers.loading import read_classifier
from vqshield.classifiers.normalised import Normalised


def small_cifar10(device: str | torch.device = "cpu") -> Normalised:
    """The bundled CIFAR-10 classifier: images in [0,1] -> logits, frozen, in eval mode.

    Norms are folded and weights laid out channels-last: the fastest form on a CPU.
    """
    asset = resources.files("vqshield.classifiers") / "assets" / "small-cifar10.safetensors"
    with resources.as_file(asset) as path:
        classifier = folded(read_classifier(path, None, device))
    assert isinstance(classifier, Normalised)
    return classifier.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]
