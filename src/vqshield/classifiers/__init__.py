"""Classifiers: networks by name, weights from safetensors, and those that other packages bring."""

from vqshield.classifiers.base import Network
from vqshield.classifiers.bundled import bundled_as_trained, small_cifar10, small_cifar10_hardened
from vqshield.classifiers.folding import folded
from vqshield.classifiers.loading import save_classifier
from vqshield.classifiers.normalised import Normalised
from vqshield.classifiers.registry import build, list_classifiers
from vqshield.classifiers.sources import (
    BUNDLED,
    classifier_forms,
    is_bundled,
    is_source,
    load_classifier,
    named_defense,
    source_digest,
    weights_digest,
)

__all__ = [
    "BUNDLED",
    "Network",
    "Normalised",
    "build",
    "bundled_as_trained",
    "classifier_forms",
    "folded",
    "is_bundled",
    "is_source",
    "list_classifiers",
    "load_classifier",
    "named_defense",
    "save_classifier",
    "small_cifar10",
    "small_cifar10_hardened",
    "source_digest",
    "weights_digest",
]
