"""Tests of accuracies over images: is one lower than required, or lower than it was?

The unit is an image, with the share of its samples that are right. All tests are one-sided. Images are taken
for independent draws of the images that the model will see; samples of one image need not be independent.
"""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from vqshield.models.draws import Accuracy, Draws

_FINEST = 100  # shares are rounded to this fraction of 1 where they are finer


@dataclass(frozen=True)
class Shares:
    """How many of the samples of each image are right, (N,), and how many samples there are."""

    right: tuple[int, ...]
    runs: int

    @classmethod
    def of(cls, draws: Draws | None) -> "Shares":
        assert draws is not None  # every attack of a finished run has all images
        return cls(tuple(draws.right.tolist()), len(draws.predictions))

    @property
    def values(self) -> NDArray[np.float64]:
        """The shares, (N,)."""
        return np.array(self.right, dtype=np.float64) / self.runs

    @property
    def accuracy(self) -> Accuracy:
        """Their mean and its standard error over images."""
        values, n = self.values, len(self.right)
        error = float(values.std(ddof=1)) / math.sqrt(n) if n > 1 else 0.0
        return Accuracy(mean=float(values.mean()), standard_error=error, runs=self.runs, n=n)


@dataclass(frozen=True, kw_only=True)
class PairedChange:
    """The change of an accuracy between two runs on the same images.

    Attributes:
        before, after, change: mean shares, and their difference (negative: worse).
        standard_error: of the change, over images.
        n, changed: images, and those of them whose share differs.
        p_value: the chance of a drop like this, if the true drop is at most the tolerance.
    """

    before: float
    after: float
    change: float
    standard_error: float
    n: int
    changed: int
    p_value: float


def paired_change(before: Shares, after: Shares, *, tolerance: float = 0.0) -> PairedChange:
    """The change from one run to another, and whether it is worse.

    The p-value is the larger of two. The exact sign-flip test supposes that every change is as likely to be
    for the better as for the worse; with one sample per image it is McNemar's exact test. The other one
    supposes that the mean drop is at most the tolerance, and uses its standard error. Without a changed image
    the p-value is 1.

    Example:
        >>> from vqshield_deploy.gating.statistics import Shares, paired_change
        >>> before, after = Shares((1,) * 100, 1), Shares((0,) * 5 + (1,) * 95, 1)
        >>> found = paired_change(before, after)
        >>> round(found.change, 3), found.changed, round(found.p_value, 5)  # 1 / 2 ** 5
        (-0.05, 5, 0.03125)
    """
    drops = before.values - after.values
    n, drop = len(drops), float(drops.mean())
    error = float(drops.std(ddof=1)) / math.sqrt(n) if n > 1 else 0.0
    return PairedChange(
        before=float(before.values.mean()),
        after=float(after.values.mean()),
        change=0.0 - drop,
        standard_error=error,
        n=n,
        changed=int((drops != 0).sum()),
        p_value=max(
            sign_flip(drops, units=min(math.lcm(before.runs, after.runs), _FINEST)),
            _beyond(drop - tolerance, error),
        ),
    )


def sign_flip(drops: NDArray[np.float64], *, units: int) -> float:
    """The chance that drops with random signs add up to at least what they do; units: of a drop of 1.

    The distribution of the positive drops' sum is exact, from its Fourier transform: a product of one factor
    for every size of a drop.
    """
    steps = np.rint(drops * units).astype(np.int64)
    sizes = Counter(np.abs(steps[steps != 0]).tolist())
    length = sum(size * count for size, count in sizes.items()) + 1
    turns = np.exp(-2j * np.pi * np.arange(length) / length)
    spectrum = np.ones(length, dtype=np.complex128)
    for size, count in sizes.items():
        spectrum *= ((1 + turns**size) / 2) ** count
    chances = np.fft.ifft(spectrum).real
    return float(np.clip(chances[steps[steps > 0].sum() :].sum(), 0, 1))


def below(shares: Shares, least: float) -> float:
    """The chance of an accuracy this low if the true one is at least this: Wilson's score test.

    It takes the largest variance that shares with this mean can have, so several samples make it careful.
    """
    mean = shares.accuracy.mean
    return _beyond(least - mean, math.sqrt(least * (1 - least) / len(shares.right)))


def _beyond(excess: float, error: float) -> float:
    """The chance of an excess like this by noise of that standard error, around 0."""
    if error == 0:
        return float(excess <= 1e-12)
    return NormalDist().cdf(-excess / error)


def holm(p_values: Mapping[int, float], level: float) -> set[int]:
    """The tests that are rejected, so that all true hypotheses together are safe at this level.

    Example:
        >>> from vqshield_deploy.gating.statistics import holm
        >>> holm({0: 0.001, 1: 0.02, 2: 0.03}, 0.05), holm({0: 0.001, 1: 0.03, 2: 0.04}, 0.05)
        ({0, 1, 2}, {0})
    """
    rejected: set[int] = set()
    for number, p_value in sorted(p_values.items(), key=lambda pair: pair[1]):
        if p_value > level / (len(p_values) - len(rejected)):
            break
        rejected.add(number)
    return rejected
