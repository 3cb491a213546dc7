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
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vqshield import attacks, auditing, certificates, defenses, surrogates
    from vqshield.auditing.study import audit as audit
    from vqshield.certification.l1 import certify_l1 as certify_l1
    from vqshield.certification.study import certify as certify
    from vqshield.defended import Defended as Defended
    from vqshield.defended import defend as defend
    from vqshield.defenses import PRD as PRD
    from vqshield.defenses import SWRD as SWRD
    from vqshield.defenses import Defense as Defense
    from vqshield.defenses import GaussianNoise as GaussianNoise
    from vqshield.defenses import Preprocessor as Preprocessor
    from vqshield.defenses import Quantizer as Quantizer
    from vqshield.defenses import RandDisc as RandDisc
    from vqshield.defenses import Splitting as Splitting
    from vqshield.defenses import list_defenses as list_defenses
    from vqshield.evaluation.study import evaluate as evaluate
    from vqshield.images.purify import purify as purify
    from vqshield.ladders.study import ladder as ladder
    from vqshield.leaderboards.study import leaderboard as leaderboard
    from vqshield.quantization.kmeans import kmeans as kmeans
    from vqshield.training.calibration import calibrate as calibrate
    from vqshield.training.hardening import harden as harden
    from vqshield.voting import Voting as Voting

__version__ = "0.1.0"

_DEFENSES = "PRD SWRD Defense GaussianNoise Preprocessor Quantizer RandDisc Splitting list_defenses"
_HOMES = {
    **dict.fromkeys(_DEFENSES.split(), "defenses"),
    **dict.fromkeys(("Defended", "defend"), "defended"),
    "Voting": "voting",
    "audit": "auditing.study",
    "calibrate": "training.calibration",
    "certify": "certification.study",
    "certify_l1": "certification.l1",
    "evaluate": "evaluation.study",
    "harden": "training.hardening",
    "kmeans": "quantization.kmeans",
    "ladder": "ladders.study",
    "leaderboard": "leaderboards.study",
    "purify": "images.purify",
}
"""Where each public name is at home. It is imported when it is first asked for: nothing waits for torch that
does not need it, `vqshield --help` for one."""

__all__ = ["attacks", "auditing", "certificates", "defenses", "surrogates", *_HOMES]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name not in _HOMES:
        return import_module(f"{__name__}.{name}")
    found = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*(name for name in globals() if name.startswith("__")), *__all__})
