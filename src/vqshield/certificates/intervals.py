"""Upper bounds on an error from m independent draws, each right with probability at least 1 − delta.

Two quantities are bounded. `clopper_pearson` bounds the error itself, from the number of errors. The paper's
argument is Markov's: an error needs ‖f(x) − f(x̂')‖₁ ≥ rho, so the error is at most E[Z], where Z is
min(1, ‖f(x) − f(x̂')‖₁ / rho); `truncated_markov` and `empirical_bernstein` bound that mean, which is never
below the error. So no bound on E[Z] can be expected to beat one on the error.

Of several bounds on the same draws, the smallest is no bound at delta: choose one before looking, or give
each of j bounds delta/j.
"""

import math

import torch
from torch import Tensor

from vqshield.certificates import binomial
from vqshield.certificates.numbers import Value, chance, counts, doubles, like, same_shape
from vqshield.core import checks

_CONVERGED = 1e-11  # of p; the next step of Newton's method would square it
_RESOLUTION = 1e-15  # 1 − p is not known better
_STEPS = 200  # Newton needs about ten; halving the bracket every time would need some sixty


def clopper_pearson(*, errors: Value, draws: int, delta: float) -> Value:
    """The error is at most Beta⁻¹(1 − delta; e+1, m−e), given e errors in m draws (Clopper & Pearson 1934).

    It is the largest p for which e or fewer errors still have probability delta, so nothing is assumed but
    independent draws; never looser than Proposition 1 on the same draws.

    Args:
        errors: e, a whole number or a tensor of whole numbers.
        draws: m.
        delta: the chance that the bound fails.

    Raises:
        InvalidInputError: more errors than draws, or an impossible delta.

    Example:
        >>> round(vq.certificates.clopper_pearson(errors=0, draws=1000, delta=0.005), 5)
        0.00528
    """
    checks.whole("draws", draws, least=1)
    found = counts("errors", errors, most=draws)
    return like(_upper(found, draws, chance("delta", delta)), errors)


def clopper_pearson_lower(*, count: Value, draws: int, delta: float) -> Value:
    """A probability is at least Beta⁻¹(delta; c, m−c+1), given that c of m draws came out so.

    Args:
        count: c, a whole number or a tensor of whole numbers.
        draws: m.
        delta: the chance that the bound fails.

    Raises:
        InvalidInputError: a count above the draws, or an impossible delta.

    Example:
        >>> round(vq.certificates.clopper_pearson_lower(count=99, draws=100, delta=0.05), 4)
        0.9534
    """
    checks.whole("draws", draws, least=1)
    found = counts("count", count, most=draws)
    return like(1 - _upper(draws - found, draws, chance("delta", delta)), count)


def truncated_markov(*, mean: Value, draws: int, delta: float) -> Value:
    """E[Z] ≤ mean + sqrt(ln(1/delta) / 2m), Hoeffding's inequality for Z in [0, 1].

    Truncation shortens the range from 2/rho to 1, so this is never looser than Proposition 1; it holds for
    any other values in [0, 1] too.

    Args:
        mean: that of min(1, ‖f(x) − f(x̂'_i)‖₁ / rho) over the draws.
        draws: m.
        delta: the chance that the bound fails.

    Raises:
        InvalidInputError: a mean outside [0, 1], or an impossible delta.

    Example:
        >>> round(vq.certificates.truncated_markov(mean=0.2, draws=1000, delta=0.005), 4)
        0.2515
    """
    checks.whole("draws", draws, least=1)
    average = doubles("mean", mean, least=0, most=1)
    slack = math.sqrt(math.log(1 / chance("delta", delta)) / (2 * draws))
    return like((average + slack).clamp(max=1), mean)


def empirical_bernstein(*, mean: Value, variance: Value, draws: int, delta: float) -> Value:
    """E[Z] ≤ mean + sqrt(2·variance·ln(2/delta) / m) + 7·ln(2/delta) / 3(m−1).

    Theorem 4 of Maurer & Pontil (2009), for the same Z in [0, 1] as `truncated_markov`; better where Z hardly
    varies and m is large. One draw says nothing: the bound is 1.

    Args:
        mean: that of the m values Z.
        variance: the sample's, divided by m − 1.
        draws: m.
        delta: the chance that the bound fails.

    Raises:
        InvalidInputError: values outside [0, 1], or shapes that differ.

    Example:
        >>> found = vq.certificates.empirical_bernstein(mean=0.2, variance=0.01, draws=1000, delta=0.005)
        >>> round(found, 4)
        0.2249
    """
    checks.whole("draws", draws, least=1)
    average = doubles("mean", mean, least=0, most=1)
    spread = doubles("variance", variance, least=0, most=1)
    same_shape(mean=average, variance=spread)
    log = math.log(2 / chance("delta", delta))
    if draws == 1:
        return like(torch.ones_like(average + spread), mean, variance)
    bound = average + torch.sqrt(2 * spread * log / draws) + 7 * log / (3 * (draws - 1))
    return like(bound.clamp(max=1), mean, variance)


def _upper(errors: Tensor, draws: int, delta: float) -> Tensor:
    """Where P(Bin(m, p) ≤ e) falls to delta; equal counts are worked out once."""
    distinct, place = torch.unique(errors, return_inverse=True)
    solved = torch.ones_like(distinct, dtype=torch.float64)
    open_ones = distinct < draws
    if bool(open_ones.any()):
        solved[open_ones] = _solve(distinct[open_ones].double(), draws, math.log(delta))
    return solved[place]


def _solve(errors: Tensor, draws: int, log_delta: float) -> Tensor:
    """Newton's method on ln P(Bin(m, p) ≤ e), concave and falling in p, kept inside a bracket."""
    low, high = torch.zeros_like(errors), torch.ones_like(errors)
    p = (errors + 1) / (draws + 1)
    for _ in range(_STEPS):
        log_cdf = binomial.log_cdf(errors, draws, p)
        excess = log_cdf - log_delta
        low, high = torch.where(excess > 0, p, low), torch.where(excess > 0, high, p)
        log_density = torch.log(draws - errors) + binomial.log_pmf(errors, draws, p) - torch.log1p(-p)
        newton = p + excess * torch.exp(log_cdf - log_density)
        done = (newton - p).abs() <= _CONVERGED * p + _RESOLUTION
        inside = done | ((newton > low) & (newton < high))
        p = torch.where(inside, newton, (low + high) / 2).clamp(max=1 - 2.0**-53)
        if bool(done.all()):
            break
    return p
