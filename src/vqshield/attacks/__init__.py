"""Attacks on anything that maps images to logits; they know no defense.

A new attack is a new file with an Attack subclass and one line in _ATTACKS. EOT is a wrapper around a model,
never a loop inside an attack.
"""

from dataclasses import fields
from typing import Any

from vqshield import checks
from vqshield.attacks.apgd import APGD
from vqshield.attacks.autoattack import AutoAttack
from vqshield.attacks.balls import L2, Ball, Linf, ball, list_norms
from vqshield.attacks.base import Attack, Model
from vqshield.attacks.bases import InBasis, basis, list_bases
from vqshield.attacks.eot import EOT
from vqshield.attacks.losses import cross_entropy, dlr, losses, margin
from vqshield.attacks.pgd import PGD
from vqshield.attacks.random_noise import RandomNoise
from vqshield.attacks.square import Square
from vqshield.attacks.transfer import Transfer
from vqshield.settings import refuse_unknown

_ATTACKS: dict[str, type[Attack]] = {
    "pgd": PGD,
    "apgd": APGD,
    "autoattack": AutoAttack,
    "square": Square,
    "noise": RandomNoise,
}


def list_attacks() -> list[str]:
    """The names of the registered attacks."""
    return list(_ATTACKS)


def known_settings(name: str) -> list[str]:
    """The settings that an attack takes, besides its ball."""
    chosen = _ATTACKS[checks.one_of("attack", name, _ATTACKS)]
    return [field.name for field in fields(chosen) if field.name != "ball"]  # type: ignore[arg-type]


def create(name: str, ball: Ball, **settings: Any) -> Attack:
    """An attack by its name; an unknown name or setting is answered with the known ones."""
    refuse_unknown(name, settings, known_settings(name))
    return _ATTACKS[name](ball=ball, **settings)  # type: ignore[call-arg]


__all__ = [
    "APGD",
    "EOT",
    "L2",
    "PGD",
    "Attack",
    "AutoAttack",
    "Ball",
    "InBasis",
    "Linf",
    "Model",
    "RandomNoise",
    "Square",
    "Transfer",
    "ball",
    "basis",
    "create",
    "cross_entropy",
    "dlr",
    "known_settings",
    "list_attacks",
    "list_bases",
    "list_norms",
    "losses",
    "margin",
]  # fmt: skip
