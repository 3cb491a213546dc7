"""The binomial distribution in float64, vectorised, without scipy: exact enough for a million draws.

P(Bin(m, p) > e) is the regularised incomplete beta function I_p(e+1, m−e). It is a binomial probability times
a continued fraction; the probability is taken by Loader's formula ("Fast and Accurate Computation of Binomial
Probabilities", 2000), because differences of log-gammas of a million would cost the last seven digits.
"""

import math

import torch
from torch import Tensor

_SERIES_FROM = 16  # below, ln n! is small enough to be subtracted from
_STIRLING = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188)
_TINY = 1e-300
_ROUNDING = 1e-13  # for up to about 100,000 draws; it grows with their number


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
