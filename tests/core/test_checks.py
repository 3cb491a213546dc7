"""Checks that are put off, or told what is known: the same refusals, with fewer waits for a GPU."""

import re
from collections.abc import Callable

import pytest
import torch
from conftest import noise_images
from torch import Tensor

import vqshield as vq
from vqshield.core import checks
from vqshield.core.errors import InvalidInputError

IMAGES, STREAMS = noise_images(2, 1, 6, 6), torch.arange(2)
DEFENSE = vq.PRD(codes=3, iterations=1, seed=0)


@pytest.fixture
def waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the images were on a GPU."""
    monkeypatch.setattr(checks, "_waits", lambda values: True)


def with_value(value: float, like: Tensor = IMAGES) -> Tensor:
    changed = like.clone()
    changed.view(-1)[7] = value
    return changed


def quantized(images: Tensor, centres: Tensor) -> Tensor:
    return DEFENSE.quantize(images, centres, streams=STREAMS)


def refusal(images: Tensor, centres: Tensor) -> str:
    with pytest.raises(InvalidInputError) as caught:
        quantized(images, centres)
    return str(caught.value)


def look(images: Tensor, centres: Tensor) -> None:
    """What quantize looks at."""
    checks.inside(images, centres, limit=1e6)


def end_of(work: Callable[[], None]) -> None:
    with checks.later():
        work()


@pytest.mark.usefixtures("waiting")
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -0.25, 1.5])
@pytest.mark.parametrize("what", ["images", "centres"])
def test_what_is_refused_later_is_refused_in_the_same_words(what: str, value: float) -> None:
    images, centres = IMAGES, DEFENSE.codebook(IMAGES, streams=STREAMS)
    if what == "images":
        images = with_value(value)
    else:
        centres = with_value(value * 1e7, centres)
    expected = refusal(images, centres)
    with checks.later() as looks:
        look(images, centres)
        look(IMAGES, centres.clamp(0, 1))
        with pytest.raises(InvalidInputError) as caught:
            looks.settle()
        looks.settle()  # nothing is left
    assert str(caught.value) == expected
    with pytest.raises(InvalidInputError, match=re.escape(expected)):
        end_of(lambda: look(images, centres))
    assert refusal(images, centres) == expected, "at once again"


@pytest.mark.usefixtures("waiting")
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -2.0])
def test_until_then_wrong_values_are_computed_with(value: float) -> None:
    with pytest.raises(InvalidInputError), checks.later() as looks:  # noqa: PT012 - both must be in there
        assert DEFENSE(with_value(value), streams=STREAMS).isfinite().all()
        looks.settle()


@pytest.mark.usefixtures("waiting")
def test_good_images_give_the_same_bits_and_a_rounding_is_clamped() -> None:
    rounded = with_value(1 + 5e-5)
    for images in (IMAGES, rounded):
        expected = DEFENSE(images, streams=STREAMS)
        with checks.later():
            assert torch.equal(DEFENSE(images, streams=STREAMS), expected)


def test_a_cpu_has_nothing_to_wait_for() -> None:
    with checks.later(), pytest.raises(InvalidInputError, match="images contain nan"):
        DEFENSE(with_value(float("nan")), streams=STREAMS)


@pytest.mark.usefixtures("waiting")
def test_another_error_is_not_hidden_by_what_was_put_off() -> None:
    def work() -> None:
        checks.inside(with_value(2.0))
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        end_of(work)


def test_a_call_waits_once_and_in_training_never(monkeypatch: pytest.MonkeyPatch) -> None:
    defense = vq.PRD(size=4, codes=2, iterations=1, backend="torch", seed=0)  # padded
    waits: list[int] = []
    read = checks._read
    monkeypatch.setattr(checks, "_read", lambda tensors: waits.append(len(tensors)) or read(tensors))
    centres = defense.codebook(IMAGES, streams=STREAMS)
    defense.quantize(IMAGES, centres, streams=STREAMS)
    assert waits == [1, 2]
    with pytest.raises(InvalidInputError, match=r"centres contain 2e\+06"):
        defense.quantize(IMAGES, with_value(2e6, centres), streams=STREAMS)
    waits.clear()
    monkeypatch.setattr(checks, "_waits", lambda values: True)
    with checks.later():
        assert torch.equal(defense.codebook(IMAGES, streams=STREAMS), centres)
        defense.quantize(IMAGES, centres, streams=STREAMS)
    assert not waits


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_the_ends_of_halves_are_found(dtype: torch.dtype) -> None:
    every = torch.arange(2**16).to(torch.int16).view(dtype)
    numbers = every[~every.isnan()]
    for values in (
        numbers,
        numbers[numbers.isfinite()],
        numbers[numbers < 0],
        numbers[numbers >= 0],
        -numbers[:1],
    ):
        for order in (values, values.flip(0), values[::3], values[:, None].expand(-1, 2)):
            assert checks._ends(order) == (float(order.min()), float(order.max()))
    for wrong in every[every.isnan()][::31]:
        with pytest.raises(InvalidInputError, match="images contain nan"):
            checks.pixel_values(torch.stack([numbers[0], wrong, numbers[1]]))
