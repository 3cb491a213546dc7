"""From bounds per image to a statement about all of them."""

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from vqshield.certificates import (
    allowed_failures,
    binomial_statement,
    clopper_pearson,
    per_image_delta,
    union_statement,
)
from vqshield.core.errors import InvalidInputError

stats = pytest.importorskip("scipy.stats")


@given(st.integers(1, 3000), st.floats(1e-6, 0.9), st.floats(1e-6, 0.9))
def test_failures_are_the_binomial_quantile(images: int, delta: float, eta: float) -> None:
    q = allowed_failures(images=images, delta=delta, eta=eta)
    assert stats.binom.sf(q, images, delta) <= eta * (1 + 1e-9)
    assert q == 0 or stats.binom.sf(q - 1, images, delta) >= eta * (1 - 1e-9)


@pytest.mark.parametrize(
    ("images", "delta", "eta"), [(10_000, 0.005, 0.01), (100, 0.05, 0.001), (1, 0.5, 0.1)]
)
def test_failures_known_from_scipy(images: int, delta: float, eta: float) -> None:
    assert allowed_failures(images=images, delta=delta, eta=eta) == stats.binom.ppf(1 - eta, images, delta)


def test_the_union_keeps_every_bound() -> None:
    upper = torch.tensor([0.1, 0.2, 0.6])
    statement = union_statement(upper=upper, delta=0.03)
    assert (statement.images, statement.holding) == (3, 3)
    assert statement.confidence == pytest.approx(0.97)
    assert statement.mean_error == pytest.approx(0.3)
    assert statement.certified_accuracy == pytest.approx(0.7)
    assert str(statement) == (
        "with probability ≥ 0.97, at least 3 of 3 bounds hold and the mean accuracy is ≥ 0.7000"
    )
    assert per_image_delta(delta=0.03, images=3) == pytest.approx(0.01)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=7), st.floats(0.01, 0.6), st.floats(0.01, 0.6))
def test_accounting_assumes_the_worst_set_of_failures(values: list[float], delta: float, eta: float) -> None:
    images = len(values)
    statement = binomial_statement(upper=torch.tensor(values, dtype=torch.float64), delta=delta, eta=eta)
    failing = images - statement.holding
    worst = max(
        sum(1.0 if i in failed else value for i, value in enumerate(values)) / images
        for failed in itertools.combinations(range(images), failing)
    )
    assert statement.mean_error == pytest.approx(worst)
    assert statement.confidence == pytest.approx(1 - eta)
    assert failing == allowed_failures(images=images, delta=delta, eta=eta)


@pytest.mark.parametrize(
    ("images", "draws", "p", "delta", "eta"), [(40, 50, 0.1, 0.05, 0.05), (20, 30, 0.4, 0.1, 0.2)]
)
def test_both_statements_hold_as_often_as_they_say(
    images: int, draws: int, p: float, delta: float, eta: float
) -> None:
    simulations = 10_000
    count = torch.full((simulations, images), float(draws))
    wrong = torch.binomial(
        count, torch.full_like(count, p), generator=torch.Generator().manual_seed(1)
    ).long()

    def allowed(chance: float) -> float:  # and four standard deviations
        return simulations * chance + 4 * math.sqrt(simulations * chance * (1 - chance))

    failing = (clopper_pearson(errors=wrong, draws=draws, delta=delta) < p).sum(1)
    assert int((failing > allowed_failures(images=images, delta=delta, eta=eta)).sum()) <= allowed(eta)
    each = per_image_delta(delta=delta, images=images)
    failing = (clopper_pearson(errors=wrong, draws=draws, delta=each) < p).sum(1)
    assert int((failing > 0).sum()) <= allowed(delta)


@pytest.mark.parametrize(
    ("upper", "delta", "eta", "message"),
    [
        (torch.tensor([]), 0.1, 0.1, r"upper of shape \(0,\)"),
        (torch.rand(2, 2), 0.1, 0.1, r"upper of shape \(2, 2\)"),
        (torch.tensor([0.5, 1.5]), 0.1, 0.1, "upper contain 1.5"),
        (torch.rand(3), 0.0, 0.1, "delta=0.0"),
        (torch.rand(3), 0.1, 1.0, "eta=1.0"),
    ],
)
def test_bad_input_is_named(upper: torch.Tensor, delta: float, eta: float, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        binomial_statement(upper=upper, delta=delta, eta=eta)
    if "eta=1" not in message:
        with pytest.raises(InvalidInputError, match=message):
            union_statement(upper=upper, delta=delta)


def test_no_images_are_refused() -> None:
    with pytest.raises(InvalidInputError, match="images=0"):
        per_image_delta(delta=0.1, images=0)
    with pytest.raises(InvalidInputError, match="images=0"):
        allowed_failures(images=0, delta=0.1, eta=0.1)
