"""vqshield defends image classifiers by vector quantization, and measures how much that protects.

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

if TYPE_CHECKING:
    from vqshield import attacks, auditing, certificates, defenses, surrogates
    from vqshield.auditing.study import audit
    from vqshield.certification.l1 import certify_l1
    from vqshield.certification.study import certify
    from vqshield.defended import Defended, defend
    from vqshield.defenses import (
        PRD,
        SWRD,
        Defense,
        GaussianNoise,
        Preprocessor,
        Quantizer,
        RandDisc,
        Splitting,
        list_defenses,
    )
    from vqshield.evaluation.study import evaluate
    from vqshield.images.purify import purify
    from vqshield.integrations.onnx import export_onnx
    from vqshield.ladders.study import ladder
    from vqshield.leaderboards.study import leaderboard
    from vqshield.quantization.kmeans import kmeans
    from vqshield.training.calibration import calibrate
    from vqshield.training.hardening import harden
    from vqshield.voting import Voting

__version__ = "0.1.0"

_ROOMS = ("attacks", "auditing", "certificates", "defenses", "surrogates")
_HOMES = {
    **dict.fromkeys(("Defended", "defend"), "defended"),
    **dict.fromkeys(("PRD", "SWRD", "Defense", "GaussianNoise", "Quantizer", "RandDisc"), "defenses"),
    "list_defenses": "defenses",
    "Preprocessor": "defenses",
    "audit": "auditing.study",
    "certify": "certification.study",
    "evaluate": "evaluation.study",
    "purify": "images.purify",
    "calibrate": "training.calibration",
    "harden": "training.hardening",
    "Splitting": "defenses",
    "certify_l1": "certification.l1",
    "ladder": "ladders.study",
    "kmeans": "quantization.kmeans",
    "export_onnx": "integrations.onnx",
    "leaderboard": "leaderboards.study",
    "Voting": "voting",
}
"""Where each public name is at home. It is imported when it is first asked for: nothing waits for torch that
does not need it, `vqshield --help` for one."""


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return import_module(f"{__name__}.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*(name for name in globals() if name.startswith("__")), *__all__})


__all__ = [
    "PRD",
    "SWRD",
    "Defended",
    "Defense",
    "GaussianNoise",
    "Preprocessor",
    "Quantizer",
    "RandDisc",
    "Splitting",
    "Voting",
    "attacks",
    "audit",
    "auditing",
    "calibrate",
    "certificates",
    "certify",
    "certify_l1",
    "defend",
    "defenses",
    "evaluate",
    "export_onnx",
    "harden",
    "kmeans",
    "ladder",
    "leaderboard",
    "list_defenses",
    "purify",
    "surrogates",
]
