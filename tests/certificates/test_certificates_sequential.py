"""Early stopping keeps alpha: simulated where every look is used against it, and the figures it stops by."""

import math

import numpy as np
import pytest
import torch

from vqshield.certificates import (
    clopper_pearson_lower,
    decided,
    look_alphas,
    look_bound,
    looks,
    thresholds_for,
)
from vqshield.core.errors import InvalidInputError

ALPHA, TRIALS = 0.05, 10_000  # a large alpha, so that 10,000 trials can tell it from a larger one


def test_looks_double_up_to_all_draws() -> None:
    assert looks(draws=100_000) == (196, 391, 782, 1563, 3125, 6250, 12_500, 25_000, 50_000, 100_000)
    assert looks(draws=150) == (150,)
    assert looks(draws=1) == (1,)


@pytest.mark.parametrize("count", [1, 2, 10])
def test_the_looks_spend_alpha_and_no_more(count: int) -> None:
    spent = look_alphas(alpha=0.001, looks=count)
    assert len(spent) == count
    assert math.fsum(spent) == pytest.approx(0.001, rel=1e-12)
    assert spent[-1] >= 0.0005


def bounds_of_trials(p: float, draws: int, seed: int) -> torch.Tensor:
    """The bounds of every look in every trial, (looks, trials)."""
    source, schedule = np.random.default_rng(seed), looks(draws=draws)
    count = np.zeros(TRIALS, dtype=np.int64)
    found, before = [], 0
    for look, total in enumerate(schedule):
        count += source.binomial(total - before, p, TRIALS)
        before = total
        bound = look_bound(count=torch.from_numpy(count), draws=total, look=look, alpha=ALPHA, looks=schedule)
        found.append(bound)
    return torch.stack(found)


@pytest.mark.parametrize("p", [0.5, 0.841, 0.977, 0.9987])
def test_certificates_are_false_no_more_often_than_alpha(p: float) -> None:
    """The worst stopping rule there is: at the look whose bound is highest. It includes every other rule."""
    bounds = bounds_of_trials(p, 10_000, seed=int(1e4 * p))
    false = float((bounds.amax(0) > p).double().mean())
    assert false <= ALPHA
    naive = torch.stack(
        [
            clopper_pearson_lower(count=count, draws=total, delta=ALPHA)
            for total, count in _counts_of_trials(p, 10_000, seed=1)
        ]
    )
    assert float((naive.amax(0) > p).double().mean()) > ALPHA or p > 0.99, "looking for free is not free"


def _counts_of_trials(p: float, draws: int, seed: int) -> list[tuple[int, torch.Tensor]]:
    source, count, before, found = np.random.default_rng(seed), np.zeros(TRIALS, dtype=np.int64), 0, []
    for total in looks(draws=draws):
        count = count + source.binomial(total - before, p, TRIALS)
        before = total
        found.append((total, torch.from_numpy(count)))
    return found


def test_images_stop_when_every_threshold_is_reached_or_out_of_reach() -> None:
    thresholds = thresholds_for(radii=(0.25,), sigma_eff=0.25)
    assert thresholds == pytest.approx((0.5, 0.8413447))
    count = torch.tensor([1000, 780, 500, 300])
    lower = clopper_pearson_lower(count=count, draws=1000, delta=0.001)
    done = decided(lower=lower, count=count, draws=1000, thresholds=thresholds, futility=0.001)
    # beyond both; between them; too close to one half; below both
    assert done.tolist() == [True, True, False, True]


def test_looks_that_are_none_are_refused() -> None:
    for look, draws in ((0, 250), (4, 125), (-1, 1000)):
        with pytest.raises(InvalidInputError, match="is none of the looks"):
            look_bound(
                count=torch.tensor([5]), draws=draws, look=look, alpha=0.01, looks=(125, 250, 500, 1000)
            )
