"""Proposition 1: the paper's formula, and what it refuses."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from vqshield.certificates import proposition1
from vqshield.core.errors import InvalidInputError

DISTANCES = st.floats(0, 2)
MARGINS = st.floats(0.001, 1)
DELTAS = st.floats(1e-9, 0.999)
DRAWS = st.integers(1, 10**6)


@pytest.mark.parametrize(("delta", "expected"), [(0.05, 0.494), (0.005, 0.584)])
def test_the_worked_example_of_the_paper_comes_out_corrected(delta: float, expected: float) -> None:
    assert proposition1(mean_l1=0.2, margin=0.9, draws=100, delta=delta) == pytest.approx(expected, abs=5e-4)


@given(DISTANCES, MARGINS, DRAWS, DELTAS)
def test_it_is_the_formula_clipped(mean_l1: float, margin: float, draws: int, delta: float) -> None:
    gamma = (mean_l1 + math.sqrt(2 * math.log(1 / delta) / draws)) / margin
    found = proposition1(mean_l1=mean_l1, margin=margin, draws=draws, delta=delta)
    assert isinstance(found, float)
    assert found == pytest.approx(min(1, gamma), rel=1e-12)


@given(st.lists(st.tuples(DISTANCES, st.floats(-1, 1)), min_size=1, max_size=8), DRAWS, DELTAS)
def test_a_tensor_gives_what_its_numbers_give(
    rows: list[tuple[float, float]], draws: int, delta: float
) -> None:
    distances, margins = torch.tensor(rows, dtype=torch.float64).unbind(1)
    found = proposition1(mean_l1=distances, margin=margins, draws=draws, delta=delta)
    assert found.dtype == torch.float64
    alone = [proposition1(mean_l1=d, margin=r, draws=draws, delta=delta) for d, r in rows]
    assert found.tolist() == alone


@pytest.mark.parametrize("margin", [0.0, -0.3, -1.0])
def test_nothing_is_certified_without_a_positive_margin(margin: float) -> None:
    assert proposition1(mean_l1=0.0, margin=margin, draws=10**6, delta=0.5) == 1


def test_more_of_each_moves_the_bound_the_right_way() -> None:
    def gamma(mean_l1: float = 0.1, margin: float = 0.8, draws: int = 500, delta: float = 0.01) -> float:
        return proposition1(mean_l1=mean_l1, margin=margin, draws=draws, delta=delta)

    assert gamma(mean_l1=0.11) > gamma()
    assert gamma(margin=0.81) < gamma()
    assert gamma(draws=501) < gamma()
    assert gamma(delta=0.011) < gamma()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"delta": 0.0}, r"delta=0.0 should lie strictly between 0 and 1"),
        ({"delta": 1.0}, r"delta=1.0"),
        ({"delta": 1.5}, r"delta=1.5 should be from 0 to 1"),
        ({"delta": math.nan}, r"delta=nan"),
        ({"draws": 0}, r"draws=0 should be >= 1"),
        ({"draws": 10.0}, r"draws=10.0 should be a whole number"),
        ({"mean_l1": -0.1}, r"mean_l1=-0.1"),
        ({"mean_l1": 2.5}, r"mean_l1=2.5"),
        ({"margin": 1.5}, r"margin=1.5"),
        ({"margin": "0.9"}, r"margin='0.9' should be a number"),
        ({"mean_l1": torch.tensor([0.2, math.nan])}, r"mean_l1 contain nan"),
        ({"mean_l1": torch.tensor([0.2, 3.0])}, r"mean_l1 contain 3"),
        ({"mean_l1": torch.tensor([1, 0])}, r"mean_l1 of dtype torch.int64"),
        ({"mean_l1": torch.rand(2), "margin": torch.rand(3)}, r"mean_l1 \(2,\), margin \(3,\)"),
    ],
)
def test_bad_input_is_named(changes: dict[str, object], message: str) -> None:
    good = {"mean_l1": 0.2, "margin": 0.9, "draws": 100, "delta": 0.05}
    with pytest.raises(InvalidInputError, match=message):
        proposition1(**{**good, **changes})
