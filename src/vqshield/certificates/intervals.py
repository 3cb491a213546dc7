"""Upper bounds on an error from m independent draws, each right with probability at least 1 − delta.

Two quantities are bounded. `clopper_pearson` bounds the error itself, from the number of errors. The paper's
argument is Markov's: an error needs ‖f(x) − f(x̂')‖₁ ≥ rho, so the error is at most E[Z], where Z is
min(1, ‖f(x) − f(x̂')‖₁ / rho); `truncated_markov` and `empirical_bernstein` bound that mean, which is never
below the error. So no bound on E[Z] can be expected to beat one on the error.

The smallest of several bounds on the same draws does not hold at delta: choose one before looking.

The binomial distribution is computed in float64, exactly enough for a million draws: P(Bin(m, p) > e) is the
incomplete beta function I_p(e+1, m−e), a binomial probability times a continued fraction. The probability is
Loader's (2000): differences of log-gammas of a million would cost the last seven digits.
"""

import math

import torch
from torch import Tensor

from vqshield.certificates.numbers import Value, chance, counts, doubles, like, same_shape
from vqshield.core import checks

_CONVERGED = 1e-11  # of p; the next step of Newton's method would square it
_RESOLUTION = 1e-15  # 1 − p is not known better
_STEPS = 200  # Newton needs about ten; halving the bracket every time would need some sixty

_SERIES_FROM = 16  # below, ln n! is small enough to be subtracted from
_STIRLING = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188)
_TINY = 1e-300
_ROUNDING = 1e-13  # for up to about 100,000 draws; it grows with their number


def clopper_pearson(*, errors: Value, draws: int, delta: float) -> Value:
    """The error is at most Beta⁻¹(1 − delta; e+1, m−e), given e errors in m draws (Clopper & Pearson 1934).

    It is the largest p for which e or fewer errors have probability delta. It assumes only independent draws
    and is never looser than Proposition 1 on the same draws.

    Args:
        errors: e, a whole number or a tensor of whole numbers, in m draws.
        delta: the chance that the bound fails.

    Example:
        >>> round(vq.certificates.clopper_pearson(errors=0, draws=1000, delta=0.005), 5)
        0.00528
    """
    checks.whole("draws", draws, least=1)
    found = counts("errors", errors, most=draws)
    return like(_upper(found, draws, chance("delta", delta)), errors)


def clopper_pearson_lower(*, count: Value, draws: int, delta: float) -> Value:
    """The probability of an outcome is at least Beta⁻¹(delta; c, m−c+1), given count c in m draws.

    Example:
        >>> round(vq.certificates.clopper_pearson_lower(count=99, draws=100, delta=0.05), 4)
        0.9534
    """
    checks.whole("draws", draws, least=1)
    found = counts("count", count, most=draws)
    return like(1 - _upper(draws - found, draws, chance("delta", delta)), count)


def truncated_markov(*, mean: Value, draws: int, delta: float) -> Value:
    """E[Z] ≤ mean + sqrt(ln(1/delta) / 2m), Hoeffding's inequality for Z in [0, 1].

    Truncation shortens the range from 2/rho to 1, so this is never looser than Proposition 1. It holds for
    any values in [0, 1]; mean is that of min(1, ‖f(x) − f(x̂'_i)‖₁ / rho) over the draws.

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
    varies and m is large. variance is the sample's, divided by m − 1; the bound of a single draw is 1.

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
        tail = log_cdf(errors, draws, p)
        excess = tail - log_delta
        low, high = torch.where(excess > 0, p, low), torch.where(excess > 0, high, p)
        log_density = torch.log(draws - errors) + log_pmf(errors, draws, p) - torch.log1p(-p)
        newton = p + excess * torch.exp(tail - log_density)
        done = (newton - p).abs() <= _CONVERGED * p + _RESOLUTION
        inside = done | ((newton > low) & (newton < high))
        p = torch.where(inside, newton, (low + high) / 2).clamp(max=1 - 2.0**-53)
        if bool(done.all()):
            break
    return p


def log_pmf(count: Tensor, draws: int, p: Tensor) -> Tensor:
    """ln P(Bin(m, p) = count) for 0 < p < 1; count and p are float64 of one shape."""
    rest, total = draws - count, torch.full_like(p, float(draws))
    binomial = _stirling_rest(total) - _stirling_rest(count) - _stirling_rest(rest)
    return binomial - _deviance(count, draws * p) - _deviance(rest, draws * (1 - p))


def log_cdf(count: Tensor, draws: int, p: Tensor) -> Tensor:
    """ln P(Bin(m, p) ≤ count) for count < m and 0 < p < 1."""
    small, term = _smaller_tail(count, draws, p)
    return torch.where(small, term, torch.log1p(-torch.exp(term.clamp(max=-_TINY))))


def survival(count: Tensor, draws: int, p: Tensor) -> Tensor:
    """P(Bin(m, p) > count) for count < m and 0 < p < 1, exact to many digits where it is tiny too."""
    small, term = _smaller_tail(count, draws, p)
    return torch.where(small, -torch.expm1(term), torch.exp(term))


def _smaller_tail(count: Tensor, draws: int, p: Tensor) -> tuple[Tensor, Tensor]:
    """ln of the tail for which the continued fraction converges fast, and where that is the lower one."""
    a, b = count + 1, draws - count
    lower = p >= (a + 1) / (draws + 3)
    edge = torch.where(lower, torch.log(p), torch.log1p(-p))
    leading = log_pmf(torch.where(lower, count, count + 1), draws, p) + edge
    x = torch.where(lower, 1 - p, p)
    return lower, leading + torch.log(_fraction(torch.where(lower, b, a), torch.where(lower, a, b), x))


def _fraction(a: Tensor, b: Tensor, x: Tensor) -> Tensor:
    """The continued fraction of the incomplete beta function (Lentz's method, DLMF 8.17.22)."""
    c = torch.ones_like(x)
    d = 1 / _away_from_zero(1 - (a + b) * x / (a + 1))
    value = d
    draws = float((a + b).max())
    for j in range(1, 1000 + int(20 * math.sqrt(draws))):
        even = j * (b - j) * x / ((a + 2 * j - 1) * (a + 2 * j))
        d, c = 1 / _away_from_zero(1 + even * d), _away_from_zero(1 + even / c)
        value = value * c * d
        odd = -(a + j) * (a + b + j) * x / ((a + 2 * j) * (a + 2 * j + 1))
        d, c = 1 / _away_from_zero(1 + odd * d), _away_from_zero(1 + odd / c)
        value = value * c * d
        if bool(((c * d - 1).abs() <= _ROUNDING * max(1, draws * 1e-5)).all()):
            break
    return value


def _away_from_zero(values: Tensor) -> Tensor:
    return torch.where(values.abs() < _TINY, _TINY, values)


def _stirling_rest(n: Tensor) -> Tensor:
    """ln n! − (n ln n − n), which is 0 for n = 0 and about ½ ln(2πn) otherwise."""
    large = n.clamp(min=_SERIES_FROM)
    series = torch.zeros_like(n)
    for coefficient in reversed(_STIRLING):
        series = series / large.square() + coefficient
    direct = torch.lgamma(n + 1) - torch.special.xlogy(n, n) + n
    return torch.where(n < _SERIES_FROM, direct, 0.5 * torch.log(2 * math.pi * large) + series / large)


def _deviance(count: Tensor, expected: Tensor) -> Tensor:
    """count·ln(count/expected) + expected − count, without cancellation where the two are near."""
    away = (count - expected) / expected
    logs: Tensor = torch.special.xlog1py(count / expected, away)
    return expected * (logs - away)
