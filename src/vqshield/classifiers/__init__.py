"""Classifiers: networks by name, weights from safetensors files, and models of other packages."""

from vqshield.classifiers.folding import folded
from vqshield.classifiers.loading import save_classifier
from vqshield.classifiers.networks import Network, build, list_classifiers
from vqshield.classifiers.normalised import Normalised, as_shown_to, check_classes, class_count
from vqshield.classifiers.sources import (
    BUNDLED,
    bundled_as_trained,
    classifier_forms,
    is_bundled,
    is_source,
    load_classifier,
    load_with_norms,
    named_defense,
    small_cifar10,
    small_cifar10_hardened,
    source_digest,
    weights_digest,
)

__all__ = [
    "BUNDLED",
    "Network",
    "Normalised",
    "as_shown_to",
    "build",
    "bundled_as_trained",
    "check_classes",
    "class_count",
    "classifier_forms",
    "folded",
    "is_bundled",
    "is_source",
    "list_classifiers",
    "load_classifier",
    "load_with_norms",
    "named_defense",
    "save_classifier",
    "small_cifar10",
    "small_cifar10_hardened",
    "source_digest",
    "weights_digest",
]
