"""The one-cycle learning rate (Smith and Topin 2018) as a pure function of the step."""

import math

from vqshield.errors import InvalidInputError

WARMUP = 0.2  # the part of the run in which the rate rises
START = 0.1  # the first rate, as a part of the peak
END = 1e-3  # the last rate, as a part of the peak


def one_cycle(step: int, *, steps: int, peak: float) -> float:
    """The rate of ``step`` in 0..steps-1: a line up to the peak, then a cosine down to almost 0."""
    if not 0 <= step < steps:
        raise InvalidInputError(f"step={step} must be in 0..{steps - 1}")
    top = WARMUP * (steps - 1)
    if step < top:
        return peak * (START + (1 - START) * step / top)
    done = (step - top) / max(steps - 1 - top, 1)
    return peak * (END + (1 - END) * (1 + math.cos(math.pi * done)) / 2)
