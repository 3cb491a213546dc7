"""The worst-case L2 certificate (Cohen et al. 2019): it holds for every perturbation up to a radius.

A draw of a covered quantizer (coverage.py) is post-processing of one Gaussian around the image, so randomised
smoothing applies. sigma_eff and copies are those of the defense's `Coverage` everywhere.

With early stopping, alpha is split between looks at the draws. The lower bounds of all looks hold together
with probability 1 − alpha (docs/certificates.md), so an image may stop at any look and keep its best bound.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from vqshield.certificates.intervals import clopper_pearson, clopper_pearson_lower
from vqshield.certificates.numbers import Value, chance, counts, doubles, like, per_class, positive
from vqshield.core import checks
from vqshield.core.errors import InvalidInputError

ABSTAIN = -1
"""The answer of a vote that could not be certified."""

_FIRST = 100  # fewer draws decide next to nothing
_LAST_SHARE = 0.5  # of alpha, for the last look: what stopping costs an image that never stops


@dataclass(frozen=True)
class Votes:
    """Certified majority votes, all (B,): with probability 1 − alpha for each image, the vote of infinitely
    many draws is `answers` for every image within an L2 distance below `radii`. Made by `certify_vote`.

    Example:
        >>> votes = vq.certificates.Votes(
        ...     answers=torch.tensor([3, 5]), radii=torch.tensor([0.2, 0.4]), probabilities=torch.ones(2)
        ... )
        >>> votes.certified(torch.tensor([3, 5]), radius=0.3).tolist()
        [False, True]
    """

    answers: Tensor  # int64, ABSTAIN where nothing is certified
    radii: Tensor  # in units of [0, 1]; 0 where nothing is certified
    probabilities: Tensor  # lower bounds on the answer's probability

    def certified(self, labels: Tensor, *, radius: float) -> Tensor:
        """Which images are certified to be voted right within an L2 radius, (B,) bool."""
        right = self.answers == checks.per_image("labels", labels, self.answers)
        return right & (self.radii > checks.real("radius", radius))


def radius(*, counts_top: Value, draws: int, alpha: float, sigma_eff: float, copies: float = 1.0) -> Value:
    """R = sigma_eff·Φ⁻¹(p_A)/copies, p_A the lower Clopper–Pearson bound at alpha; 0 (abstain) if p_A ≤ ½.

    Args:
        counts_top: how many of the draws gave the class, which must have been chosen without these draws.
        alpha: the chance that the certificate is wrong.
        sigma_eff, copies: of the defense's `Coverage`.

    Example:
        >>> found = vq.certificates.radius(counts_top=9900, draws=10_000, alpha=0.001, sigma_eff=0.1)
        >>> round(found, 4)
        0.2212
    """
    top = counts("counts_top", counts_top, most=checks.whole("draws", draws, least=1))
    lower = clopper_pearson_lower(count=top, draws=draws, delta=chance("alpha", alpha))
    return like(radius_of(lower, sigma_eff=sigma_eff, copies=copies), counts_top)


def certify_vote(
    *,
    selection_counts: Tensor,
    estimation_counts: Tensor,
    alpha: float,
    sigma_eff: float,
    copies: float = 1.0,
) -> Votes:
    """The two stages of Cohen et al.: n0 draws choose the class, n fresh ones bound its probability.

    Args:
        selection_counts: how many of the n0 draws gave each class, (B, classes), whole numbers.
        estimation_counts: the same of the n draws; every row adds up to n.
        alpha: the chance, for each image, that its certificate is wrong.
        sigma_eff, copies: of the defense's `Coverage`.

    Example:
        >>> selected, estimated = torch.tensor([[9, 1], [5, 5]]), torch.tensor([[95, 5], [52, 48]])
        >>> votes = vq.certificates.certify_vote(
        ...     selection_counts=selected, estimation_counts=estimated, alpha=0.001, sigma_eff=0.1
        ... )
        >>> votes.answers.tolist()  # the second is too close to call
        [0, -1]
    """
    selected = _votes("selection_counts", selection_counts)
    estimated = _votes("estimation_counts", estimation_counts)
    if selected.shape != estimated.shape:
        found = f"{tuple(selected.shape)} and {tuple(estimated.shape)}"
        raise InvalidInputError(f"selection_counts and estimation_counts of shapes {found} should be equal")
    draws = int(estimated[0].sum()) if len(estimated) else 1
    chosen = selected.argmax(-1)
    top = estimated.gather(-1, chosen[:, None])[:, 0]
    lower = clopper_pearson_lower(count=top, draws=draws, delta=chance("alpha", alpha))
    radii = radius_of(lower, sigma_eff=sigma_eff, copies=copies)
    return Votes(torch.where(radii > 0, chosen, ABSTAIN), radii, lower)


def accuracy_bound(*, p_y: Value, radius: float, sigma_eff: float, copies: float = 1.0) -> Value:
    """Φ(Φ⁻¹(p_y) − radius·copies/sigma_eff): the least probability that a single draw is right, for every
    image within the L2 radius; p_y is a lower bound on the probability at x, from draws at x.

    Example:
        >>> round(vq.certificates.accuracy_bound(p_y=0.99, radius=0.1, sigma_eff=0.1), 4)
        0.9076
    """
    p = doubles("p_y", p_y, least=0, most=1)
    shift = checks.real("radius", radius) * _factor(copies) / positive("sigma_eff", sigma_eff)
    return like(torch.special.ndtr(torch.special.ndtri(p) - shift), p_y)


def linf_radius(*, radius: Value, values: int, norm: str = "l2") -> Value:
    """R/sqrt(q·h·w): the largest L-inf ball inside the L2 ball; R/(q·h·w) for an L1 ball.

    Args:
        radius: R, in norm "l1" or "l2".
        values: q·h·w, 3072 for CIFAR.

    Example:
        >>> round(vq.certificates.linf_radius(radius=0.2, values=3072) * 255, 2)
        0.92
    """
    found = doubles("radius", radius, least=0, most=math.inf)
    return like(found / _shrinking(values, norm), radius)


def radius_for_linf(*, eps: float, values: int, norm: str) -> float:
    """How large an L1 or L2 radius must be to cover an L-inf budget: eps·(q·h·w), or eps·sqrt(q·h·w).

    The corners of the L-inf ball are that far away. Usual certificates do not come near it, so an L1 or L2
    certificate must not be read as one in L-inf. Arguments as of `linf_radius`; eps is the L-inf budget.

    Example:
        >>> round(vq.certificates.radius_for_linf(eps=8 / 255, values=3072, norm="l2"), 2)
        1.74
    """
    return checks.real("eps", eps, most=1.0) * _shrinking(values, norm)


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
    """Which images need no more draws: those that reach or cannot reach every threshold.

    A look only decides when to stop, so an error here makes no certificate wrong.

    Args:
        lower: lower bounds on p_A, (B,).
        count: how many of the draws gave class A, (B,).
        thresholds: the probabilities to reach, of `thresholds_for`.
        futility: the chance at which a probability counts as out of reach.

    Example:
        >>> lower, count = torch.tensor([0.9, 0.4]), torch.tensor([99, 50])
        >>> vq.certificates.decided(
        ...     lower=lower, count=count, draws=100, thresholds=(0.5, 0.8), futility=0.001
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

    Example:
        >>> count, looks = torch.tensor([125]), (125, 250, 500, 1000)
        >>> found = vq.certificates.look_bound(count=count, draws=125, look=0, alpha=0.001, looks=looks)
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
        >>> [round(p, 4) for p in vq.certificates.thresholds_for(radii=(0.25, 0.5), sigma_eff=0.25)]
        [0.5, 0.8413, 0.9772]
    """
    scale = _factor(copies) / positive("sigma_eff", sigma_eff)
    far = torch.tensor([0.0, *(checks.real("radius", each) for each in radii)], dtype=torch.float64) * scale
    return tuple(sorted(set(torch.special.ndtr(far).tolist())))


def _shrinking(values: int, norm: str) -> float:
    """How many times smaller the largest L-inf ball inside a ball of that norm is."""
    count = checks.whole("values", values, least=1)
    return count if checks.one_of("norm", norm, ("l1", "l2")) == "l1" else math.sqrt(count)


def radius_of(lower: Tensor, *, sigma_eff: float, copies: float = 1.0) -> Tensor:
    """sigma_eff·Φ⁻¹(p_A)/copies for lower bounds on p_A, however they were found; 0 up to ½."""
    scale = positive("sigma_eff", sigma_eff) / _factor(copies)
    return torch.where(lower > 0.5, scale * torch.special.ndtri(lower), 0.0)


def _factor(copies: float) -> float:
    return checks.real("copies", copies, least=1.0)


def _votes(name: str, given: Tensor) -> Tensor:
    """Counts per class (B, classes), the same number of draws, one or more, in every row."""
    per_class(name, given, "whole numbers")
    draws = sorted(set(given.sum(-1).tolist()))
    if bool((given < 0).any()) or len(draws) > 1 or 0 in draws:
        found = f"rows that add up to {draws} and minimum {int(given.min())}"
        raise InvalidInputError(f"{name} with {found} should be ≥ 0 and hold the same number of draws ≥ 1")
    return given.long()
