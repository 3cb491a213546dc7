"""Attacks on anything that maps images to logits; they know no defense.

A new attack is a new file with an Attack subclass and one line in _ATTACKS. EOT is a wrapper around a model,
never a loop inside an attack.
"""

from collections.abc import Callable

from vqshield.attacks.apgd import APGD
from vqshield.attacks.autoattack import AutoAttack
from vqshield.attacks.balls import L1, L2, Ball, Linf, ball, list_norms
from vqshield.attacks.base import Attack, QueryAttack, QueryTrace
from vqshield.attacks.bases import InBasis, basis, list_bases
from vqshield.attacks.eot import EOT
from vqshield.attacks.losses import cross_entropy, dlr, list_losses, margin
from vqshield.attacks.pgd import PGD
from vqshield.attacks.precision import PRECISIONS, FastAnswers, FastGradients
from vqshield.attacks.random_noise import RandomNoise
from vqshield.attacks.rays import RayS
from vqshield.attacks.square import Square
from vqshield.attacks.transfer import DiverseInputs, Ensemble, Transfer
from vqshield.core import checks
from vqshield.core.settings import Setting, refuse_unknown, setting_names
from vqshield.models.calling import Model

_ATTACKS: dict[str, Callable[..., Attack]] = {
    "pgd": PGD,
    "apgd": APGD,
    "autoattack": AutoAttack,
    "square": Square,
    "noise": RandomNoise,
    "rays": RayS,
}


def list_attacks() -> list[str]:
    """The names of the registered attacks.

    Example:
        >>> vq.attacks.list_attacks()
        ['pgd', 'apgd', 'autoattack', 'square', 'noise', 'rays']
    """
    return list(_ATTACKS)


def known_settings(name: str) -> list[str]:
    """The settings that an attack takes, besides its ball.

    Raises:
        InvalidInputError: an unknown name.

    Example:
        >>> vq.attacks.known_settings("square")
        ['queries', 'p_init', 'judgements', 'seed']
    """
    chosen = _ATTACKS[checks.one_of("attack", name, _ATTACKS)]
    return [name for name in setting_names(chosen) if name != "ball"]


def create(name: str, ball: Ball, **settings: Setting | None) -> Attack:
    """An attack by its name.

    Args:
        name: one of `list_attacks()`.
        ball: where it may move an image to.
        **settings: some of `known_settings(name)`.

    Raises:
        InvalidInputError: an unknown name or setting, answered with the known ones.

    Example:
        >>> attack = vq.attacks.create("pgd", vq.attacks.Linf(8 / 255), steps=2)
        >>> attack(classifier, images, labels).shape
        torch.Size([8, 3, 32, 32])
    """
    refuse_unknown(name, settings, known_settings(name))
    return _ATTACKS[name](ball=ball, **settings)


__all__ = [
    "APGD",
    "EOT",
    "L1",
    "L2",
    "PGD",
    "PRECISIONS",
    "Attack",
    "AutoAttack",
    "Ball",
    "DiverseInputs",
    "Ensemble",
    "FastAnswers",
    "FastGradients",
    "InBasis",
    "Linf",
    "Model",
    "QueryAttack",
    "QueryTrace",
    "RandomNoise",
    "RayS",
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
    "list_losses",
    "list_norms",
    "margin",
]
