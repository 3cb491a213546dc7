"""Auto-PGD in an L1 ball (Croce and Hein 2021, "Mind the box"): steps that change few values.

In L1 the steepest step changes a single value, which gets nowhere, and a step along the sign of all values is
far from steepest. So each step moves the k values with the largest slopes that the range [0, 1] still lets
move, all by the same amount; k follows how many values the best point so far has changed.
"""

import math

import torch
from torch import Tensor

_FIRST_SHARE = 0.2  # of all values: k of the first steps
_SHRINK = 1.5  # k is this many times smaller than the number of values changed; so is a step after another
_STEADY = 0.95  # k has settled where it is not below this share of the last one
_SHORTEST = 10  # no step is shorter than the first one divided by this
_EVERY = 0.04  # of all steps: how often k and the step length are looked at


class L1Steps:
    """The sparse steps of a batch of climbs, and how long and how sparse they are by now.

    Args:
        images: (B, q, h, w), where the climbs are centred.
        eps: the radius, which is the length of the first step.
        steps: of a climb.
    """

    def __init__(self, images: Tensor, *, eps: float, steps: int) -> None:
        self._images, self._eps = images, eps
        self._values = images[0].numel()
        self._every = math.ceil(_EVERY * steps)
        self._length = torch.full((len(images),), float(eps), dtype=images.dtype, device=images.device)
        self._share = torch.full_like(self._length, _FIRST_SHARE)

    def move(self, points: Tensor, gradient: Tensor) -> Tensor:
        """The step from each point: along the k largest slopes that [0, 1] allows, of the length by now."""
        free = torch.where(gradient > 0, points < 1, points > 0) & (gradient != 0)
        slopes = (gradient.abs() * free).flatten(1)
        count = (self._share * self._values).round().clamp(1, self._values).long()
        least = slopes.sort(1, descending=True).values.gather(1, count[:, None] - 1)
        chosen = (slopes >= least.clamp(min=torch.finfo(slopes.dtype).tiny)).view_as(gradient)
        moved = chosen.flatten(1).sum(1).clamp(min=1)
        each = (self._length / moved)[:, None, None, None]
        return gradient.sign() * chosen * each

    def look(self, number: int, best: Tensor) -> Tensor:
        """After step `number`, with the best points so far: which climbs go back to them, (B,).

        Where the number of values changed still falls, k follows it and steps stay long; where it has
        settled, steps get shorter.
        """
        if number % self._every:
            return torch.zeros_like(self._length, dtype=torch.bool)
        changed = ((best - self._images).abs() > 1e-8).flatten(1).sum(1)
        share = (changed / self._values / _SHRINK).clamp(min=1 / self._values).to(self._share.dtype)
        settled = share >= _STEADY * self._share
        shorter = (self._length / _SHRINK).clamp(min=self._eps / _SHORTEST)
        self._length = torch.where(settled, shorter, torch.full_like(self._length, float(self._eps)))
        self._share = share
        return settled
