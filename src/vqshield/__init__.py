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

from importlib import import_module
from typing import TYPE_CHECKING, Any

from vqshield import attacks, certificates, defenses, surrogates
from vqshield.defended import Defended, defend
from vqshield.defenses import PRD, SWRD, Defense, GaussianNoise, Quantizer, RandDisc, list_defenses

if TYPE_CHECKING:
    from vqshield import auditing
    from vqshield.purification import purify
    from vqshield.studies.audit_target import audit
    from vqshield.studies.certification import certify
    from vqshield.studies.evaluation import evaluate

__version__ = "0.1.0"

_LAZY = {
    "audit": "vqshield.studies.audit_target",
    "certify": "vqshield.studies.certification",
    "evaluate": "vqshield.studies.evaluation",
    "purify": "vqshield.purification",
}
"""Calls that measure, and the rooms that they are in: loaded when they are first asked for."""


def __getattr__(name: str) -> Any:
    if name == "auditing":
        return import_module("vqshield.auditing")
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


__all__ = [
    "PRD",
    "SWRD",
    "Defended",
    "Defense",
    "GaussianNoise",
    "Quantizer",
    "RandDisc",
    "attacks",
    "audit",
    "auditing",
    "certificates",
    "certify",
    "defend",
    "defenses",
    "evaluate",
    "list_defenses",
    "purify",
    "surrogates",
]
