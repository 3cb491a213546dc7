"""Learning rates as pure functions of the step."""

import math
from collections.abc import Sequence

from vqshield.core.errors import InvalidInputError

SCHEDULES = ("one-cycle", "cosine", "step", "constant")
WARMUP = 0.2  # the part of a cycle in which the rate rises
START = 0.1  # a cycle's first rate, as a part of the peak
END = 1e-3  # a cycle's last rate, as a part of the peak


def one_cycle(step: int, *, steps: int, peak: float) -> float:
    """Smith and Topin 2018: a line up to the peak, then a cosine down to almost 0."""
    _check(step, steps)
    top = WARMUP * (steps - 1)
    if step < top:
        return peak * (START + (1 - START) * step / top)
    done = (step - top) / max(steps - 1 - top, 1)
    return peak * (END + (1 - END) * (1 + math.cos(math.pi * done)) / 2)


def cosine(step: int, *, steps: int, peak: float) -> float:
    """Loshchilov and Hutter 2017, without restarts: from the peak to 0, which the step after the last has."""
    _check(step, steps)
    return peak * (1 + math.cos(math.pi * step / steps)) / 2


def stepwise(step: int, *, steps: int, peak: float, milestones: Sequence[int], drop: float) -> float:
    """The peak, multiplied by ``drop`` at each milestone, a number of steps."""
    _check(step, steps)
    return peak * drop ** sum(step >= each for each in milestones)


def _check(step: int, steps: int) -> None:
    if not 0 <= step < steps:
        raise InvalidInputError(f"step={step} must be in 0..{steps - 1}")
