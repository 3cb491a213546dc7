"""The intervals against scipy, their formulas and their defining property."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vqshield.certificates import (
    clopper_pearson,
    clopper_pearson_lower,
    empirical_bernstein,
    truncated_markov,
)
from vqshield.core.errors import InvalidInputError

special = pytest.importorskip("scipy.special")
stats = pytest.importorskip("scipy.stats")

DELTAS = [1e-12, 0.001, 0.05, 0.5, 0.999]


def some_counts(draws: int) -> torch.Tensor:
    """Both ends, and evenly between."""
    ends = torch.arange(min(draws, 20) + 1)
    return torch.cat([ends, draws - ends, torch.linspace(0, draws, 50).long()]).unique()


@pytest.mark.parametrize("delta", DELTAS)
@pytest.mark.parametrize("draws", [1, 2, 7, 100, 1000, 12_345, 10**6])
def test_clopper_pearson_is_scipys_to_nine_digits(draws: int, delta: float) -> None:
    counts = some_counts(draws)
    inner = counts[counts < draws].double().numpy()
    upper = clopper_pearson(errors=counts, draws=draws, delta=delta).numpy()
    expected = np.append(special.betainccinv(inner + 1, draws - inner, delta), 1.0)
    np.testing.assert_allclose(upper, expected, rtol=0, atol=1e-9)
    inner = counts[counts > 0].double().numpy()
    lower = clopper_pearson_lower(count=counts, draws=draws, delta=delta).numpy()
    expected = np.append(0.0, special.betaincinv(inner, draws - inner + 1, delta))
    np.testing.assert_allclose(lower, expected, rtol=0, atol=1e-9)


def test_known_answers() -> None:
    assert clopper_pearson(errors=0, draws=1000, delta=0.005) == pytest.approx(0.00528, abs=5e-6)
    assert clopper_pearson(errors=10, draws=10, delta=0.005) == 1
    assert clopper_pearson_lower(count=0, draws=10, delta=0.005) == 0


@given(st.integers(1, 10**6), st.floats(1e-12, 0.99))
def test_no_errors_have_a_closed_form(draws: int, delta: float) -> None:
    found = clopper_pearson(errors=0, draws=draws, delta=delta)
    assert found == pytest.approx(-math.expm1(math.log(delta) / draws), rel=1e-9)


@given(st.data(), st.integers(2, 5000), st.floats(1e-9, 0.99))
def test_so_few_errors_have_probability_delta_at_the_bound(
    data: st.DataObject, draws: int, delta: float
) -> None:
    errors = data.draw(st.integers(0, draws - 1))
    bound = clopper_pearson(errors=errors, draws=draws, delta=delta)
    # Near 1 the probability moves by m·density per unit of p, and p has 16 digits only.
    assert stats.binom.cdf(errors, draws, bound) == pytest.approx(delta, rel=1e-6, abs=1e-15 * draws)


@settings(max_examples=12)  # a curve of up to 300 bounds each
@given(st.data(), st.integers(1, 300), st.floats(1e-6, 0.4))
def test_the_interval_is_monotone_and_holds_the_share(data: st.DataObject, draws: int, delta: float) -> None:
    counts = torch.arange(draws + 1)
    upper = clopper_pearson(errors=counts, draws=draws, delta=delta)
    lower = clopper_pearson_lower(count=counts, draws=draws, delta=delta)
    assert bool((upper.diff() > 0).all())
    assert bool((lower.diff() > 0).all())
    assert bool((lower <= counts / draws).all())
    assert bool((upper >= counts / draws).all())
    errors = data.draw(st.integers(0, draws))
    one_more_right = clopper_pearson(errors=errors, draws=draws + 1, delta=delta)
    assert one_more_right <= upper[errors]
    surer = clopper_pearson(errors=errors, draws=draws, delta=delta / 2)
    assert surer >= upper[errors]


@settings(max_examples=12)
@given(st.data(), st.integers(1, 2000), st.floats(1e-6, 0.9))
def test_numbers_and_tensors_agree(data: st.DataObject, draws: int, delta: float) -> None:
    counts = data.draw(st.lists(st.integers(0, draws), min_size=1, max_size=4))
    upper = clopper_pearson(errors=torch.tensor(counts), draws=draws, delta=delta)
    alone = [clopper_pearson(errors=count, draws=draws, delta=delta) for count in counts]
    assert all(isinstance(value, float) for value in alone)
    assert upper.tolist() == pytest.approx(alone, rel=1e-10)
    grid = torch.tensor([counts, counts])
    assert torch.equal(clopper_pearson(errors=grid, draws=draws, delta=delta)[0], upper)


@given(st.floats(0, 1), st.integers(1, 10**6), st.floats(1e-9, 0.999))
def test_truncated_markov_is_hoeffdings_bound(mean: float, draws: int, delta: float) -> None:
    expected = min(1, mean + math.sqrt(math.log(1 / delta) / (2 * draws)))
    assert truncated_markov(mean=mean, draws=draws, delta=delta) == pytest.approx(expected, rel=1e-12)


@given(st.lists(st.floats(0, 1), min_size=2, max_size=30), st.floats(1e-9, 0.999))
def test_empirical_bernstein_is_theorem_four(values: list[float], delta: float) -> None:
    m = len(values)
    pairs = sum((values[i] - values[j]) ** 2 for i in range(m) for j in range(i))
    variance, mean = pairs / (m * (m - 1)), sum(values) / m
    log = math.log(2 / delta)
    expected = min(1, mean + math.sqrt(2 * variance * log / m) + 7 * log / (3 * (m - 1)))
    seen = torch.tensor(values, dtype=torch.float64)
    found = empirical_bernstein(mean=min(1.0, mean), variance=float(seen.var()), draws=m, delta=delta)
    assert found == pytest.approx(expected, rel=1e-9)


def test_empirical_bernstein_wins_where_nothing_varies_and_loses_where_draws_are_few() -> None:
    def pair(draws: int) -> tuple[float, float]:
        still = empirical_bernstein(mean=0.1, variance=0.0, draws=draws, delta=0.01)
        return still, truncated_markov(mean=0.1, draws=draws, delta=0.01)

    bernstein, hoeffding = pair(10_000)
    assert bernstein < hoeffding
    bernstein, hoeffding = pair(50)
    assert bernstein > hoeffding
    assert empirical_bernstein(mean=0.0, variance=0.0, draws=1, delta=0.5) == 1


def test_tensors_of_means_and_variances_agree_with_numbers() -> None:
    means, variances = torch.tensor([0.0, 0.25, 1.0]).double(), torch.tensor([0.0, 0.125, 0.25]).double()
    hoeffding = truncated_markov(mean=means, draws=400, delta=0.05)
    bernstein = empirical_bernstein(mean=means, variance=variances, draws=400, delta=0.05)
    for i in range(3):
        mean, variance = float(means[i]), float(variances[i])
        assert float(hoeffding[i]) == truncated_markov(mean=mean, draws=400, delta=0.05)
        alone = empirical_bernstein(mean=mean, variance=variance, draws=400, delta=0.05)
        assert float(bernstein[i]) == alone


@pytest.mark.parametrize("bound", [clopper_pearson, clopper_pearson_lower])
@pytest.mark.parametrize(
    ("count", "draws", "delta", "message"),
    [
        (11, 10, 0.05, "=11 should be from 0 to 10"),
        (-1, 10, 0.05, "=-1 should be"),
        (1.0, 10, 0.05, "=1.0 should be a whole number"),
        (torch.tensor([3, 11]), 10, 0.05, "contain 11; every value should lie in 0 … draws=10"),
        (torch.tensor([3.0]), 10, 0.05, "of dtype torch.float32"),
        (torch.tensor([True]), 10, 0.05, "of dtype torch.bool"),
        (1, 0, 0.05, "draws=0"),
        (1, 10, 0.0, "delta=0.0"),
        (1, 10, 1.0, "delta=1.0"),
        (1, 10, -0.1, "delta=-0.1"),
    ],
)
def test_bad_counts_are_named(bound, count, draws, delta, message) -> None:
    name = "errors" if bound is clopper_pearson else "count"
    with pytest.raises(InvalidInputError, match=message):
        bound(**{name: count}, draws=draws, delta=delta)


def test_bad_means_are_named() -> None:
    with pytest.raises(InvalidInputError, match=r"mean=1.2 should be from 0 to 1"):
        truncated_markov(mean=1.2, draws=10, delta=0.1)
    with pytest.raises(InvalidInputError, match="variance=-1"):
        empirical_bernstein(mean=0.2, variance=-1, draws=10, delta=0.1)
    with pytest.raises(InvalidInputError, match="delta=2"):
        truncated_markov(mean=0.2, draws=10, delta=2)
