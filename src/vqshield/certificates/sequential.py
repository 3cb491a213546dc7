"""The L2 certificate with early stopping: looks at the draws on the way, and alpha split between the looks.

The lower bounds of all looks hold together with probability 1 − alpha (docs/certificates.md), so an image may
stop at any of them, for any reason, and keep the best of its bounds.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from vqshield.certificates.intervals import clopper_pearson, clopper_pearson_lower
from vqshield.certificates.numbers import chance, counts, positive
from vqshield.core import checks
from vqshield.core.errors import InvalidInputError

_FIRST = 100  # fewer draws decide next to nothing
_LAST_SHARE = 0.5  # of alpha, for the last look: what stopping costs an image that never stops


def looks(*, draws: int) -> tuple[int, ...]:
    """After how many draws to look: doubling, up to all of them.

    Example:
        >>> vq.certificates.looks(draws=1000)
        (125, 250, 500, 1000)
    """
    last = checks.whole("draws", draws, least=1)
    halvings = max(0, math.floor(math.log2(last / _FIRST))) if last > _FIRST else 0
    return tuple(math.ceil(last / 2**k) for k in range(halvings, -1, -1))


def look_alphas(*, alpha: float, looks: int) -> tuple[float, ...]:
    """The share of alpha that each look spends: half for the last one, the rest in equal parts.

    Example:
        >>> vq.certificates.look_alphas(alpha=0.001, looks=3)
        (0.00025, 0.00025, 0.0005)
    """
    chance("alpha", alpha)
    if checks.whole("looks", looks, least=1) == 1:
        return (alpha,)
    early = alpha * (1 - _LAST_SHARE) / (looks - 1)
    return (early,) * (looks - 1) + (alpha * _LAST_SHARE,)


def decided(
    *, lower: Tensor, count: Tensor, draws: int, thresholds: Sequence[float], futility: float
) -> Tensor:
    """Which images need no more draws: no threshold is left that they do not reach yet and still may.

    A look decides nothing but when to stop, so this may be wrong without making any certificate wrong.

    Args:
        lower: the lower bounds on p_A so far, (B,).
        count: how many of the draws gave class A, (B,).
        draws: of each image, so far.
        thresholds: the probabilities to reach: ½ for any certificate, Φ(r·copies/sigma_eff) for radius r.
        futility: the chance at which a probability counts as out of reach.

    Example:
        >>> vq.certificates.decided(
        ...     lower=torch.tensor([0.9, 0.4]), count=torch.tensor([99, 50]), draws=100,
        ...     thresholds=(0.5, 0.8), futility=0.001,
        ... ).tolist()
        [True, False]
    """
    found = counts("count", count, most=checks.whole("draws", draws, least=1))
    upper = clopper_pearson(errors=found, draws=draws, delta=chance("futility", futility))
    still_open = torch.zeros_like(lower, dtype=torch.bool)
    for threshold in thresholds:
        still_open |= (lower <= threshold) & (upper > threshold)
    return ~still_open


def look_bound(*, count: Tensor, draws: int, look: int, alpha: float, looks: Sequence[int]) -> Tensor:
    """The lower Clopper–Pearson bound of one look, number `look` from 0, at its share of alpha.

    Raises:
        InvalidInputError: a look that there is not, or another number of draws than it has.

    Example:
        >>> found = vq.certificates.look_bound(
        ...     count=torch.tensor([125]), draws=125, look=0, alpha=0.001, looks=(125, 250, 500, 1000)
        ... )
        >>> round(float(found), 4)
        0.9328
    """
    if not 0 <= look < len(looks) or looks[look] != draws:
        raise InvalidInputError(f"look={look} with draws={draws} is none of the looks {tuple(looks)}")
    spent = look_alphas(alpha=alpha, looks=len(looks))[look]
    return clopper_pearson_lower(count=count, draws=draws, delta=spent)


def thresholds_for(*, radii: Sequence[float], sigma_eff: float, copies: float = 1.0) -> tuple[float, ...]:
    """½, and the probability of A that each L2 radius takes: Φ(r·copies/sigma_eff).

    Example:
        >>> [round(each, 4) for each in vq.certificates.thresholds_for(radii=(0.25, 0.5), sigma_eff=0.25)]
        [0.5, 0.8413, 0.9772]
    """
    scale = checks.real("copies", copies, least=1.0) / positive("sigma_eff", sigma_eff)
    far = torch.tensor([0.0, *(checks.real("radius", each) for each in radii)], dtype=torch.float64) * scale
    return tuple(sorted(set(torch.special.ndtr(far).tolist())))
