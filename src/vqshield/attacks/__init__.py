"""Attacks on any model from images to logits; they know no defense.

A new attack is a new file with an Attack subclass and one line in _ATTACKS. EOT is a wrapper
around a model, never a loop inside an attack. Modules are imported when their names are first used.
"""

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING

from vqshield.attacks.balls import L1, L2, Ball, Linf, ball, list_norms
from vqshield.attacks.base import Attack, QueryAttack, QueryTrace
from vqshield.attacks.eot import EOT
from vqshield.attacks.losses import cross_entropy, dlr, list_losses, margin
from vqshield.core import checks
from vqshield.core.settings import Setting, refuse_unknown, setting_names
from vqshield.models.calling import Model

if TYPE_CHECKING:
    from vqshield.attacks.apgd import APGD as APGD
    from vqshield.attacks.autoattack import AutoAttack as AutoAttack
    from vqshield.attacks.bases import InBasis as InBasis
    from vqshield.attacks.bases import basis as basis
    from vqshield.attacks.bases import list_bases as list_bases
    from vqshield.attacks.pgd import PGD as PGD
    from vqshield.attacks.precision import FastAnswers as FastAnswers
    from vqshield.attacks.precision import FastGradients as FastGradients
    from vqshield.attacks.random_noise import RandomNoise as RandomNoise
    from vqshield.attacks.rays import RayS as RayS
    from vqshield.attacks.square import Square as Square
    from vqshield.attacks.transfer import DiverseInputs as DiverseInputs
    from vqshield.attacks.transfer import Ensemble as Ensemble
    from vqshield.attacks.transfer import Transfer as Transfer

PRECISIONS = ("float32", "tf32", "bf16")
"""Precisions of gradients; the first is the default, and changes nothing."""

_ATTACKS = {
    "pgd": "pgd.PGD", "apgd": "apgd.APGD", "autoattack": "autoattack.AutoAttack",
    "square": "square.Square", "noise": "random_noise.RandomNoise", "rays": "rays.RayS",
}  # fmt: skip
"""The module and class behind each name."""
_HOMES = {
    **{kind: module for module, _, kind in (path.partition(".") for path in _ATTACKS.values())},
    **dict.fromkeys(("DiverseInputs", "Ensemble", "Transfer"), "transfer"),
    **dict.fromkeys(("FastAnswers", "FastGradients"), "precision"),
    **dict.fromkeys(("InBasis", "basis", "list_bases"), "bases"),
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def _attack_class(name: str) -> Callable[..., Attack]:
    module, _, kind = _ATTACKS[checks.one_of("attack", name, _ATTACKS)].partition(".")
    found: Callable[..., Attack] = getattr(import_module(f"{__name__}.{module}"), kind)
    return found


def list_attacks() -> list[str]:
    """The names of the registered attacks.

    Example:
        >>> vq.attacks.list_attacks()
        ['pgd', 'apgd', 'autoattack', 'square', 'noise', 'rays']
    """
    return list(_ATTACKS)


def known_settings(name: str) -> list[str]:
    """The settings that an attack takes, without its ball.

    Example:
        >>> vq.attacks.known_settings("square")
        ['queries', 'p_init', 'judgements', 'seed']
    """
    return [setting for setting in setting_names(_attack_class(name)) if setting != "ball"]


def create(name: str, ball: Ball, **settings: Setting | None) -> Attack:
    """An attack by its name.

    Args:
        name: one of `list_attacks()`.
        ball: the allowed changes.
        **settings: some of `known_settings(name)`.

    Example:
        >>> attack = vq.attacks.create("pgd", vq.attacks.Linf(8 / 255), steps=2)
        >>> attack(classifier, images, labels).shape
        torch.Size([8, 3, 32, 32])
    """
    refuse_unknown(name, settings, known_settings(name))
    return _attack_class(name)(ball=ball, **settings)


__all__ = [
    "EOT",
    "L1",
    "L2",
    "PRECISIONS",
    "Attack",
    "Ball",
    "Linf",
    "Model",
    "QueryAttack",
    "QueryTrace",
    "ball",
    "create",
    "cross_entropy",
    "dlr",
    "known_settings",
    "list_attacks",
    "list_losses",
    "list_norms",
    "margin",
    *_HOMES,
]
