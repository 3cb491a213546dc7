"""The exact L1 certificate of smoothing by splitting (Levine and Feizi 2021), without sampling or alpha.

The vote is over all draws of the defense, one per shift of its cuts. A value that changes by one level of
8 bits changes its cell under exactly one shift, so a perturbation of d levels changes at most d votes.
docs/certificates.md derives it, also for images that are not 8-bit.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from vqshield.certificates.numbers import Value, doubles, like, per_class, positive, same_shape
from vqshield.core import checks
from vqshield.core.errors import InvalidInputError

LEVELS = 255
"""The steps from black to white; an L1 distance between 8-bit images is a multiple of 1/255."""


@dataclass(frozen=True)
class ExactVotes:
    """Votes over all shifts, each (B,): `answers` is what they elect at every 8-bit image within an L1
    distance of `radii`, that distance included. Made by `certify_all_shifts`.

    Example:
        >>> votes = vq.certificates.ExactVotes(answers=torch.tensor([3]), steps=torch.tensor([51]))
        >>> votes.radii.tolist(), votes.certified(torch.tensor([3]), radius=0.2).tolist()
        ([0.2], [True])
    """

    answers: Tensor  # int64
    steps: Tensor  # int64: how many levels, over all values together, a perturbation may have

    @property
    def radii(self) -> Tensor:
        """The certified L1 radii, in units of [0, 1]."""
        return self.steps.double() / LEVELS

    @property
    def real_radii(self) -> Tensor:
        """Below which L1 distance real-valued images are covered too: about half as far."""
        return (self.steps + 1).double() / (2 * LEVELS)

    def certified(self, labels: Tensor, *, radius: float) -> Tensor:
        """Which images are certified to be voted right on every 8-bit image within an L1 radius, (B,)."""
        right = self.answers == checks.per_image("labels", labels, self.answers)
        return right & (self.radii >= checks.real("radius", radius))


def certify_all_shifts(*, counts: Tensor) -> ExactVotes:
    """Certify the votes of all shifts: counts (B, classes) of the shifts that gave each class.

    The answer is the class with most votes, the lowest of several. d changed votes take at most d from it and
    give at most d to another class, so it stays while n_A − d > n_B + d, or equal where A is the lower class:
    d = min over B of ⌊(n_A − n_B − [B < A]) / 2⌋, which is λ(p_A − p_B) in units of [0, 1] up to rounding.

    Example:
        >>> found = vq.certificates.certify_all_shifts(counts=torch.tensor([[30, 21, 0], [20, 20, 11]]))
        >>> found.answers.tolist(), found.steps.tolist()
        ([0, 0], [4, 0])
    """
    per_class("counts", counts, "whole numbers")
    if bool((counts < 0).any()):
        raise InvalidInputError(f"counts contain {int(counts.min())}; every one should be >= 0")
    counts = counts.long()
    answers = _lowest_largest(counts)
    top = counts.gather(1, answers[:, None])
    classes = torch.arange(counts.shape[1], device=counts.device)[None]
    spare = top - counts - (classes < answers[:, None]).long()
    spare = spare.scatter(1, answers[:, None], torch.iinfo(torch.int64).max)  # not against itself
    return ExactVotes(answers, spare.amin(1).div(2, rounding_mode="floor"))


def splitting_radius(*, p_top: Value, p_second: Value, scale: float) -> Value:
    """λ(p_A − p_B): how far in L1 class A stays ahead, for cuts that may lie anywhere.

    This is the paper's radius for given probabilities; `certify_all_shifts` counts them exactly.

    Args:
        p_top: the probability of A, or a lower bound.
        p_second: that of the next class, or an upper bound.
        scale: λ, that of the `Splitting`.

    Example:
        >>> round(vq.certificates.splitting_radius(p_top=0.9, p_second=0.05, scale=0.5), 3)
        0.425
    """
    top, second = doubles("p_top", p_top, least=0, most=1), doubles("p_second", p_second, least=0, most=1)
    same_shape(p_top=top, p_second=second)
    return like((top - second).clamp(min=0) * positive("scale", scale), p_top, p_second)


def _lowest_largest(counts: Tensor) -> Tensor:
    """The class of the largest count in each row, the lowest of several; argmax promises neither."""
    classes = counts.shape[1]
    return (counts * classes + torch.arange(classes - 1, -1, -1, device=counts.device)).argmax(1)
