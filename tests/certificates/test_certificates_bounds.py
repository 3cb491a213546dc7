"""What every registered bound must keep: never below the truth more often than delta, and the known order."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from vqshield.certificates import (
    Evidence,
    bounds_from,
    clopper_pearson,
    empirical_bernstein,
    error_bounds,
    evidence,
    list_bounds,
    truncated_markov,
)
from vqshield.core.display_names import BOUND_NAMES

SIMULATIONS = 10_000
ROUNDING = 1e-12


def most_failures(delta: float) -> float:
    """delta of the simulations, and four standard deviations of a binomial: passed by chance 1 in 30,000."""
    return SIMULATIONS * delta + 4 * math.sqrt(SIMULATIONS * delta * (1 - delta))


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def binomials(p: float, draws: int, seed: int) -> Tensor:
    counts = torch.full((SIMULATIONS,), float(draws), dtype=torch.float64)
    return torch.binomial(counts, torch.full_like(counts, p), generator=generator(seed))


def two_point(p: float, draws: int, seed: int, margin: float = 0.9) -> Evidence:
    """Draws where Markov's step loses nothing: ‖f(x) − f(x̂')‖₁ is rho for an error and 0 otherwise."""
    wrong = binomials(p, draws, seed)
    share = wrong / draws
    variance = share * (1 - share) * draws / (draws - 1)
    rho = torch.full_like(share, margin)
    return Evidence(draws, rho, margin * share, share, variance, wrong.long())


@pytest.mark.parametrize("name", list_bounds())
@pytest.mark.parametrize("delta", [0.005, 0.05, 0.3])
@pytest.mark.parametrize("draws", [20, 100, 1000])
@pytest.mark.parametrize("p", [0.003, 0.05, 0.5, 0.97])
def test_a_bound_fails_no_more_often_than_delta(name: str, p: float, draws: int, delta: float) -> None:
    upper = bounds_from(two_point(p, draws, seed=draws), delta=delta)[name]
    assert int((upper < p).sum()) <= most_failures(delta)


@pytest.mark.parametrize("name", list_bounds())
def test_a_bound_holds_from_softmax_outputs_to_the_end(name: str) -> None:
    p, draws, delta = 0.15, 60, 0.1
    wrong = torch.rand(draws, SIMULATIONS, generator=generator(1)) < p
    right, tied = torch.tensor([0.95, 0.05]), torch.tensor([0.5, 0.5])
    drawn = torch.where(wrong[..., None], tied, right)
    reference, labels = right.expand(SIMULATIONS, 2), torch.zeros(SIMULATIONS, dtype=torch.int64)
    upper = error_bounds(reference=reference, drawn=drawn, labels=labels, delta=delta)[name]
    assert int((upper < p).sum()) <= most_failures(delta)


@pytest.mark.parametrize("delta", [0.01, 0.2])
@pytest.mark.parametrize("power", [0.2, 1.0, 9.0])
def test_bounds_on_a_mean_hold_for_values_between_zero_and_one(power: float, delta: float) -> None:
    """Powers u^c of uniform values: skewed to either side, with mean 1/(c+1)."""
    draws = 200
    values = torch.rand(draws, SIMULATIONS, generator=generator(2), dtype=torch.float64) ** power
    mean, variance = values.mean(0), values.var(0)
    for upper in (
        truncated_markov(mean=mean, draws=draws, delta=delta),
        empirical_bernstein(mean=mean, variance=variance, draws=draws, delta=delta),
    ):
        assert int((upper < 1 / (power + 1)).sum()) <= most_failures(delta)


@pytest.mark.parametrize(("errors", "draws", "delta"), [(0, 20, 0.05), (7, 100, 0.01), (40, 200, 0.2)])
def test_clopper_pearson_wastes_nothing(errors: int, draws: int, delta: float) -> None:
    """Just above a value that the bound can take, it fails exactly delta of the time."""
    p = clopper_pearson(errors=errors, draws=draws, delta=delta) + 1e-9
    upper = clopper_pearson(errors=binomials(p, draws, seed=3).long(), draws=draws, delta=delta)
    failures = int((upper < p).sum())
    assert 2 * SIMULATIONS * delta - most_failures(delta) <= failures <= most_failures(delta)


@given(
    st.integers(0, 2**32),
    st.integers(1, 60),
    st.integers(2, 10),
    st.floats(0.3, 6),
    st.floats(0, 4),
    st.floats(1e-9, 0.999),
)
def test_clopper_pearson_is_never_looser_than_the_papers_bound(
    seed: int, draws: int, classes: int, sharp: float, noise: float, delta: float
) -> None:
    """For every m and delta: e/m ≤ mean Z ≤ mean L1 / rho, and by Hoeffding's inequality Clopper–Pearson is
    at most e/m + sqrt(ln(1/delta)/2m), which is half of Proposition 1's slack at rho = 1.
    """
    images = 8
    logits = sharp * torch.randn(images, classes, generator=generator(seed), dtype=torch.float64)
    moves = torch.randn(draws, images, classes, generator=generator(seed + 1), dtype=torch.float64)
    reference, drawn = logits.softmax(-1), (logits + noise * moves).softmax(-1)
    labels = reference.argmax(-1)
    labels[0] = (labels[0] + 1) % classes  # one that the classifier gets wrong: rho ≤ 0
    upper = error_bounds(reference=reference, drawn=drawn, labels=labels, delta=delta)
    assert bool((upper["clopper_pearson"] <= upper["truncated_markov"] + ROUNDING).all())
    assert bool((upper["truncated_markov"] <= upper["proposition1"] + ROUNDING).all())
    for values in upper.values():
        assert values.shape == (images,)
        assert values.dtype == torch.float64
        assert bool(((values >= 0) & (values <= 1)).all())
    assert float(upper["proposition1"][0]) == 1


@given(st.integers(1, 400), st.floats(0.05, 1), st.floats(1e-9, 0.999))
def test_the_order_holds_where_markov_is_tight(draws: int, margin: float, delta: float) -> None:
    share = torch.arange(draws + 1).double() / draws
    variance = share * (1 - share) * draws / max(1, draws - 1)
    rho = torch.full_like(share, margin)
    seen = Evidence(draws, rho, margin * share, share, variance, torch.arange(draws + 1))
    upper = bounds_from(seen, delta=delta)
    assert bool((upper["clopper_pearson"] <= upper["truncated_markov"] + ROUNDING).all())
    assert bool((upper["truncated_markov"] <= upper["proposition1"] + ROUNDING).all())


@pytest.mark.parametrize("name", list_bounds())
def test_more_confidence_costs(name: str) -> None:
    seen = two_point(0.1, 500, seed=4)
    sure, surer = bounds_from(seen, delta=0.05)[name], bounds_from(seen, delta=0.005)[name]
    assert bool((surer >= sure).all())
    assert bool((surer > sure).any())


def test_one_call_is_the_two_steps() -> None:
    outputs = torch.rand(11, 5, 4, generator=generator(5)).softmax(-1)
    labels = torch.tensor([0, 1, 2, 3, 0])
    seen = evidence(reference=outputs[0], drawn=outputs[1:], labels=labels)
    upper = error_bounds(reference=outputs[0], drawn=outputs[1:], labels=labels, delta=0.1)
    assert list(upper) == list_bounds()
    for name, values in bounds_from(seen, delta=0.1).items():
        assert torch.equal(values, upper[name])


def test_every_bound_has_a_display_name() -> None:
    assert list(BOUND_NAMES) == list_bounds()
