import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from vqshield.quantization.fixed_point import FixedPoint


@given(d=st.integers(1, 4000), bound=st.floats(1, 50), seed=st.integers(0, 1000))
def test_inner_products_on_the_grid_do_not_depend_on_their_order(d: int, bound: float, seed: int) -> None:
    fixed = FixedPoint.fitting(d, bound)
    generator = torch.Generator().manual_seed(seed)
    a, b = (fixed.round(1 - bound + torch.rand(d, generator=generator) * (2 * bound - 1)) for _ in range(2))
    order = torch.randperm(d, generator=generator)
    for terms in (a * b, (a - b).square()):
        exact = sum(int(term * 4.0**fixed.bits) for term in terms.tolist())
        one_by_one = sum(terms[order].tolist())
        assert one_by_one == float(terms.sum()) == exact / 4.0**fixed.bits
    assert abs(float((b * b).sum() - 2 * (a * b).sum())) * 4.0**fixed.bits <= 2**53


@pytest.mark.parametrize("d", [1, 3, 4, 12, 27])
def test_the_default_noise_keeps_float32_resolution(d: int) -> None:
    assert FixedPoint.fitting(d, bound=1 + 6.67 * 4 / 255).bits == 23


@given(count=st.integers(1, 5000), d=st.integers(1, 100), seed=st.integers(0, 1000))
def test_summable_distances_never_overflow_exact_integers(count: int, d: int, seed: int) -> None:
    fixed = FixedPoint.fitting(d, bound=1.2)
    distances = torch.full((count,), d * 1.4**2, dtype=torch.float64)
    assert 0 < int(fixed.summable(distances, count).sum()) <= 2**53


def test_rounding_moves_a_value_by_at_most_half_a_grid_step() -> None:
    fixed = FixedPoint.fitting(27, bound=1.1)
    values = torch.rand(10_000, dtype=torch.float64)
    moved = (fixed.round(values) - values).abs().max()
    assert float(moved) <= 2.0 ** -(fixed.bits + 1)
    assert float(fixed.round(torch.tensor(0.5))) == pytest.approx(0.5, abs=0)


def test_half_way_patches_go_up_and_half_way_centres_to_the_even_number() -> None:
    fixed = FixedPoint.fitting(3, bound=1.1)
    halves = torch.tensor([-1.5, -0.5, 0.5, 1.5, 2.5], dtype=torch.float64) * 2.0**-fixed.bits
    assert (fixed.round_patches(halves) * 2.0**fixed.bits).tolist() == [-1, 0, 1, 2, 3]
    assert (fixed.round(halves) * 2.0**fixed.bits).tolist() == [-2, 0, 0, 2, 2]
