"""Splitting: the cells of the paper in integers, one shift a draw, and the contract of every defense."""

import copy
from pathlib import Path

import pytest
import torch
from conftest import noise_images
from torch import Tensor, nn

import vqshield as vq
from vqshield.attacks import Linf
from vqshield.attacks.threats import threat
from vqshield.core.errors import InvalidInputError
from vqshield.defenses import create_any, from_text
from vqshield.images.files import encode_png
from vqshield.quantization.noise import Draw, Stage
from vqshield.training.shielding import TrainingShield

IMAGES = noise_images(5, 3, 6, 7).mul(255).round().div(255)
SCALES = (1 / 510, 0.01, 0.1, 0.3, 0.5, 0.87, 1.73)


def cell_centre(value: int, cut: int, width: int) -> float:
    """A level's cell by a loop: cuts at cut + ½ and every `width` levels, ends kept within 0 and 255."""
    upper = cut + 0.5
    while upper < value:
        upper += width
    while upper - width > value:
        upper -= width
    return (min(upper, 255) + max(upper - width, 0)) / 2 / 255


@pytest.mark.parametrize("scale", SCALES)
def test_a_value_becomes_the_centre_of_its_cell(scale: float) -> None:
    split = vq.Splitting(scale=scale, pattern=5, seed=0)
    width = split.levels
    words = Draw(5, torch.zeros(1, dtype=torch.int64)).words(Stage.PATTERN, 0, IMAGES[0].numel())[0]
    for shift in {0, width // 2, width - 1}:
        found = split.shifted(IMAGES[:1], torch.tensor([shift])).flatten().tolist()
        for value, word, shown in zip(IMAGES[0].flatten().tolist(), words.tolist(), found, strict=True):
            cut = ((word * width >> 32) + shift) % width
            assert shown == pytest.approx(cell_centre(round(255 * value), cut, width), abs=1e-7)


@pytest.mark.parametrize("scale", [0.01, 0.3, 0.87])
def test_one_level_changes_one_shift(scale: float) -> None:
    """All shifts of all levels: neighbouring levels differ in exactly one of them, for every value."""
    split = vq.Splitting(scale=scale, seed=0)
    levels = torch.arange(256).view(256, 1, 1, 1).expand(256, 1, 1, 2) / 255
    shown = torch.stack(
        [split.shifted(levels, torch.full((256,), shift)) for shift in range(split.levels)]
    )  # (shifts, 256, 1, 1, 2)
    changed = (shown[:, 1:] != shown[:, :-1]).sum(0)
    assert torch.equal(changed, torch.ones_like(changed))


def test_a_draw_is_one_of_the_shifts_each_as_likely() -> None:
    split = vq.Splitting(scale=5 / 510, seed=3)
    image = IMAGES[:1]
    every = torch.cat([split.shifted(image, torch.tensor([shift])) for shift in range(5)])
    drawn = split(image.expand(1000, -1, -1, -1))
    which = (drawn[:, None] == every[None]).flatten(2).all(2)  # (1000, 5)
    assert bool((which.sum(1) == 1).all())
    assert float((which.double().mean(0) - 0.2).abs().max()) < 0.05


def test_an_image_is_bit_equal_alone_in_a_batch_and_in_any_order() -> None:
    split, streams = vq.Splitting(scale=0.2, seed=9), torch.tensor([7, -3, 2**40, 0, 5])
    together = split(IMAGES, streams=streams)
    for number in range(5):
        alone = split(IMAGES[number : number + 1], streams=streams[number : number + 1])
        assert torch.equal(alone[0], together[number])
    order = torch.tensor([3, 1, 4, 0, 2])
    assert torch.equal(split(IMAGES[order], streams=streams[order]), together[order])
    layout = IMAGES.contiguous(memory_format=torch.channels_last)
    assert torch.equal(split(layout, streams=streams), together)
    wide = split(IMAGES.double(), streams=streams)
    assert wide.dtype == torch.float64
    torch.testing.assert_close(wide.float(), together, rtol=0, atol=1e-7)


def test_seed_streams_and_pattern_decide_a_draw() -> None:
    split = vq.Splitting(scale=0.3, seed=1)
    before, first = torch.get_rng_state(), split(IMAGES)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(split.reseeded(1)(IMAGES), first)
    assert not torch.equal(split(IMAGES), first)
    other = vq.Splitting(scale=0.3, pattern=1, seed=1)(IMAGES)
    assert not torch.equal(other, first)
    content = vq.Splitting(scale=0.3, seed=1, streams="content")
    assert torch.equal(content(IMAGES), content(IMAGES))
    unseeded = vq.Splitting(scale=0.3)
    assert not torch.equal(unseeded(IMAGES), copy.deepcopy(unseeded)(IMAGES))
    assert split(torch.empty(0, 3, 4, 4)).shape == (0, 3, 4, 4)
    assert 0 <= float(first.min()) <= float(first.max()) <= 1


def test_values_between_levels_are_rounded_first() -> None:
    split, streams = vq.Splitting(scale=0.1, seed=1), torch.arange(5)
    near = (IMAGES + 0.4 / 255 * (2 * noise_images(5, 3, 6, 7, seed=2) - 1)).clamp(0, 1)
    assert torch.equal(split(near, streams=streams), split(IMAGES, streams=streams))


def test_it_is_known_by_name_and_stands_before_a_classifier() -> None:
    made = from_text("splitting:scale=0.25,pattern=4", seed=2)
    assert repr(made) == "Splitting(scale=0.25, pattern=4, seed=2)"
    again = create_any("splitting", **made.settings(), seed=2)
    assert torch.equal(made(IMAGES), again(IMAGES))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        classifier = nn.Sequential(nn.Flatten(), nn.Linear(3 * 6 * 7, 4)).eval()
    model = vq.Defended(classifier, made.reseeded(2))
    points = IMAGES.clone().requires_grad_()
    assert float(torch.autograd.grad(model(points).sum(), points)[0].abs().max()) > 0
    labels = torch.arange(5) % 4
    found = threat("pgd:steps=2,eot=2", Linf(0.1))(classifier, made, IMAGES, labels)
    assert not torch.equal(found, IMAGES)


def test_pictures_are_purified_and_training_is_shielded_with_it(tmp_path: Path) -> None:
    picture = tmp_path / "in.png"
    picture.write_bytes(encode_png(IMAGES[0].mul(255).round().byte().permute(1, 2, 0).numpy()))
    done = vq.purify(picture, tmp_path / "out", defense="splitting:scale=0.1", seed=1)
    assert done[0].error is None
    shield = TrainingShield("splitting:scale=0.1", seed=0, device=torch.device("cpu"))
    given = IMAGES.mul(255).round().byte()
    assert torch.equal(shield.training(given, step=3), shield.training(given, step=3))
    assert not torch.equal(shield.training(given, step=3), shield.training(given, step=4))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"scale": 0.001}, "scale=0.001 should be at least 1/510"),
        ({"scale": 33}, "scale=33 should be from 0 to 32"),
        ({"scale": "wide"}, "scale='wide' should be a number"),
        ({"scale": 0.1, "pattern": -1}, "pattern=-1 should be"),
    ],
)
def test_settings_that_cannot_work_are_named(settings: dict, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        vq.Splitting(**settings)


@pytest.mark.parametrize("images", [IMAGES[0, 0], IMAGES.long(), IMAGES + 1])
def test_images_that_cannot_be_are_named(images: Tensor) -> None:
    with pytest.raises(InvalidInputError, match="images"):
        vq.Splitting(scale=0.1, seed=0)(images)


def test_the_l2_certificate_is_refused_with_the_way_to_the_other_one() -> None:
    with pytest.raises(InvalidInputError, match="vqshield certify --norm l1"):
        vq.Splitting(scale=0.1).certificate_terms()
