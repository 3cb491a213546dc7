"""Attacks on anything that maps images to logits; they know no defense.

A new attack is a new file with an Attack subclass and one line in _ATTACKS.
"""

from vqshield.attacks.balls import Linf
from vqshield.attacks.base import Attack, Model, cross_entropy
from vqshield.attacks.eot import EOT
from vqshield.attacks.pgd import PGD

_ATTACKS: dict[str, type[Attack]] = {"pgd": PGD}


def attacks() -> list[str]:
    """The names of the registered attacks."""
    return list(_ATTACKS)


__all__ = ["EOT", "PGD", "Attack", "Linf", "Model", "attacks", "cross_entropy"]
