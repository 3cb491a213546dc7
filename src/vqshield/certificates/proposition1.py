"""Proposition 1 of the paper: a bound on the error from how far the draws' outputs lie from f(x)."""

import math

import torch

from vqshield import checks
from vqshield.certificates.scalars import Value, chance, doubles, like, same_shape

_ROUNDING = 1e-2  # outputs in half precision add up to 1 only about


def proposition1(*, mean_l1: Value, margin: Value, draws: int, delta: float) -> Value:
    """gamma = (mean_l1 + sqrt(2 ln(1/delta)/m)) / rho, an upper bound on the error, clipped to [0, 1].

    It holds with probability at least 1 − delta over the draws, for the one image x' that was drawn from, not
    for a ball around x: another x' needs draws of its own, and nothing is said about those never tried.

    mean_l1 is the mean of ‖f(x) − f(x̂'_i)‖₁ over the m = draws quantized x', margin is rho(x, y, f), both of
    softmax outputs. Where the margin is not positive nothing is certified: the bound is 1.
    """
    checks.whole("draws", draws, least=1)
    distance = doubles("mean_l1", mean_l1, least=0, most=2 + _ROUNDING)
    rho = doubles("margin", margin, least=-1 - _ROUNDING, most=1 + _ROUNDING)
    same_shape(mean_l1=distance, margin=rho)
    slack = math.sqrt(2 * math.log(1 / chance("delta", delta)) / draws)
    gamma = torch.where(rho > 0, (distance + slack) / rho, 1.0)
    return like(gamma.clamp(max=1), mean_l1, margin)
