"""Which quantizers are covered; the copies factor against the grids that really cut images."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from vqshield.certificates import Coverage, effective_sigma
from vqshield.core.errors import InvalidInputError
from vqshield.quantization.patches import Disjoint, PatchGrid, Sliding

NOISE = 4 / 255
SIGMAS = st.floats(1e-4, 10)
GOOD = {"kind": "sliding", "size": 3, "sigma": NOISE, "tau": NOISE, "weights_from": "noisy", "beta": 2.0}


@given(SIGMAS, SIGMAS)
def test_effective_sigma_is_the_formula(sigma: float, tau: float) -> None:
    found = effective_sigma(sigma=sigma, tau=tau)
    assert found == pytest.approx((1 / sigma**2 + 1 / tau**2) ** -0.5)
    assert found == effective_sigma(sigma=tau, tau=sigma)
    assert found <= min(sigma, tau)
    assert effective_sigma(sigma=2 * sigma, tau=tau) > found


def test_effective_sigma_of_equal_and_of_very_unequal_noise() -> None:
    assert effective_sigma(sigma=NOISE, tau=NOISE) == pytest.approx(NOISE / math.sqrt(2))
    assert effective_sigma(sigma=1e-200, tau=1e200) == 1e-200


def stretch(grid: PatchGrid, height: int, width: int) -> float:
    """The largest growth in L2 from image to patches: cutting copies pixels, so it is that of one pixel."""
    pixels = torch.eye(height * width).view(-1, 1, height, width)
    padded = grid.pad(pixels)
    patches = grid.cut(padded, 0, grid.count(*padded.shape[2:]))
    return float(patches.square().sum((1, 2)).max().sqrt())


@pytest.mark.parametrize(("height", "width"), [(12, 12), (11, 13), (7, 9)])
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_copies_are_those_of_the_grids(size: int, height: int, width: int) -> None:
    sliding = Coverage.of(**{**GOOD, "size": size}).copies
    assert sliding == pytest.approx(stretch(Sliding(size), height, width))
    zero = Coverage.of(kind="disjoint", size=size, sigma=NOISE, tau=NOISE).copies
    assert zero == stretch(Disjoint(size), height, width) == 1
    reflect = Coverage.of(kind="disjoint", size=size, sigma=NOISE, tau=NOISE, padding="reflect").copies
    assert reflect >= stretch(Disjoint(size, "reflect"), height, width) - 1e-6


def test_reflection_can_copy_a_pixel_four_times() -> None:
    reflect = Coverage.of(kind="disjoint", size=4, sigma=NOISE, tau=NOISE, padding="reflect").copies
    assert reflect == pytest.approx(stretch(Disjoint(4, "reflect"), 9, 9))


def test_disjoint_patches_need_no_weights() -> None:
    expected = Coverage(effective_sigma(sigma=NOISE, tau=0.1), 1.0)
    assert Coverage.of(kind="disjoint", size=1, sigma=NOISE, tau=0.1) == expected
    assert Coverage.of(kind="disjoint", size=2, sigma=NOISE, tau=0.1) == expected


def test_sliding_windows_pay_for_their_overlap() -> None:
    assert Coverage.of(**GOOD) == Coverage(NOISE / math.sqrt(2), 3.0)
    assert Coverage.of(**{**GOOD, "weights_from": "clean", "beta": 0.0}) == Coverage.of(**GOOD)
    assert Coverage.of(**GOOD, noise="image").copies == 1


def test_windows_of_one_pixel_are_disjoint_patches() -> None:
    single = Coverage.of(kind="sliding", size=1, sigma=NOISE, tau=NOISE, weights_from="clean", beta=2.0)
    assert single == Coverage.of(kind="disjoint", size=1, sigma=NOISE, tau=NOISE)


def test_shared_noise_is_one_look_instead_of_two() -> None:
    assert Coverage.of(**GOOD, shared=True) == Coverage(NOISE, 3.0)
    assert Coverage.of(**GOOD, shared=True, noise="image") == Coverage(NOISE, 1.0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sigma": 0}, "no certificate holds for sigma=0"),
        ({"tau": 0.0}, "no certificate holds for tau=0.0"),
        ({"weights_from": "clean"}, "weights_from='clean' with beta=2.0: the weights see the image"),
        ({"weights_from": "clean", "beta": None}, "weights_from='clean' with beta=None"),
        ({"weights_from": "clean", "noise": "image"}, "weights_from='clean'"),
        ({"shared": True, "tau": 0.1}, "two scalings of one draw"),
        ({"sigma": -1.0}, "sigma=-1.0 should be >= 0"),
        ({"tau": math.inf}, "tau=inf"),
        ({"size": 0}, "size=0"),
        ({"kind": "hexagonal"}, "kind='hexagonal' is unknown; choose one of disjoint, sliding"),
        ({"weights_from": "both"}, "weights_from='both'"),
        ({"padding": "wrap"}, "padding='wrap'"),
        ({"noise": "none"}, "noise='none'"),
    ],
)
def test_refusals_say_why(changes: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        Coverage.of(**{**GOOD, **changes})


@pytest.mark.parametrize(("sigma", "tau"), [(0.0, 0.1), (0.1, 0.0), (-0.1, 0.1)])
def test_effective_sigma_needs_both(sigma: float, tau: float) -> None:
    with pytest.raises(InvalidInputError, match=r"=(0.0|-0.1) should be >"):
        effective_sigma(sigma=sigma, tau=tau)
