"""Any function from images to images is a defense: its gradient, its randomness, what it may return."""

import random
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import noise_images
from torch import Tensor, nn

import vqshield as vq
from vqshield.core.errors import InvalidInputError
from vqshield.defenses import from_text, is_preprocessor

IMAGES = noise_images(3, 3, 8, 8)
STREAMS = torch.arange(3)


def halved(images: Tensor) -> Tensor:
    return images / 2


def rounded(images: Tensor) -> Tensor:
    return images.round()


def through_numpy(images: Tensor) -> Tensor:
    return torch.from_numpy(images.numpy() * np.float32(0.5))


def noisy(images: Tensor) -> Tensor:
    own = torch.rand_like(images) + float(np.random.rand()) + random.random()
    return (images + 0.1 * own / 3).clamp(0, 1)


def gradient(defense: object, surrogate: str = "own") -> Tensor:
    model = vq.Defended(nn.Flatten(), defense, surrogate=surrogate)
    points = IMAGES.clone().requires_grad_()
    return torch.autograd.grad(model(points).sum(), points)[0]


@pytest.mark.parametrize(
    "function", [halved, nn.Sequential(nn.AvgPool2d(3, 1, 1)), lambda images: images * 0.9]
)
def test_functions_and_modules_stand_before_a_classifier(function) -> None:
    expected = nn.Flatten()(function(IMAGES))
    assert torch.equal(vq.Defended(nn.Flatten(), function)(IMAGES), expected)
    assert torch.equal(vq.defend(nn.Flatten(), function)(IMAGES), expected)


def test_its_own_gradient_is_used_where_it_has_one() -> None:
    assert gradient(halved).unique().tolist() == [0.5]
    assert gradient(halved, "soft").unique().tolist() == [0.5]
    assert gradient(halved, "ste").unique().tolist() == [1.0]


@pytest.mark.parametrize("function", [rounded, through_numpy, lambda images: images.detach() / 2])
def test_the_identity_stands_in_where_it_has_none(function) -> None:
    assert vq.Preprocessor(function).surrogate(IMAGES.clone().requires_grad_(), streams=STREAMS) is None
    assert gradient(function).unique().tolist() == [1.0]


def test_its_authors_surrogate_comes_first() -> None:
    class Rounding(nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            return images.round()

        def surrogate(self, images: Tensor) -> Tensor:
            return images * 0.25

    assert gradient(Rounding()).unique().tolist() == [0.25]
    assert torch.equal(vq.Preprocessor(Rounding())(IMAGES), IMAGES.round())


def test_the_gradient_is_that_of_the_same_draw() -> None:
    def scaled(images: Tensor) -> Tensor:
        return images * torch.rand(len(images), 1, 1, 1)

    defense, points = vq.Preprocessor(scaled, seed=3), IMAGES.clone().requires_grad_()
    draw = defense(IMAGES, streams=STREAMS)
    again = defense.surrogate(points, streams=STREAMS)
    assert torch.equal(again.detach(), draw)


def test_draws_repeat_by_seed_and_streams_and_differ_otherwise() -> None:
    one, same, other = (vq.Preprocessor(noisy, seed=seed) for seed in (1, 1, 2))
    first, second = one(IMAGES), one(IMAGES)
    assert not torch.equal(first, second)
    assert torch.equal(same(IMAGES), first)
    assert torch.equal(same(IMAGES, streams=torch.arange(3, 6)), second)
    assert not torch.equal(other(IMAGES), first)
    assert torch.equal(other.reseeded(1)(IMAGES), first)


def test_all_global_generators_are_left_alone() -> None:
    torch.manual_seed(0)
    before = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()
    model = vq.Defended(nn.Flatten(), vq.Preprocessor(noisy, seed=1))
    model(IMAGES.clone().requires_grad_()).sum().backward()
    assert torch.equal(torch.get_rng_state(), before[0])
    assert np.random.get_state()[1].tolist() == before[1]
    assert random.getstate() == before[2]


def test_a_module_is_asked_in_eval_mode_and_shared_by_copies() -> None:
    module = nn.Sequential(nn.Dropout(0.9)).train()
    defense = vq.Preprocessor(module)
    assert torch.equal(defense(IMAGES), IMAGES)
    assert module.training
    assert module[0].training
    assert defense.reseeded(3).function is module


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (
            lambda images: images[:, :, :4],
            r"gave images of shape \(3, 3, 4, 8\); they should have shape \(3, 3, 8, 8\)",
        ),
        (
            lambda images: images.double(),
            "gave images of dtype torch.float64; they should have dtype torch.float32",
        ),
        (lambda images: images * 255, r"gave values from 0.*to 25.*should lie in \[0, 1\]"),
        (lambda images: images * torch.nan, "gave values from nan to nan"),
        (lambda images: images.numpy(), "gave a ndarray; it should give images, a tensor"),
        (lambda images: None, "gave a NoneType"),
    ],
)
def test_what_comes_back_is_checked(function, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        vq.Preprocessor(function)(IMAGES)


def test_nonsense_is_named() -> None:
    with pytest.raises(
        InvalidInputError, match="should be a module or a function from images to images, not int"
    ):
        vq.Preprocessor(3)
    rounded_with_a_word = nn.Identity()
    rounded_with_a_word.surrogate = "ste"
    with pytest.raises(InvalidInputError, match=r"surrogate of Identity should be a function .* not str"):
        vq.Preprocessor(rounded_with_a_word)


def test_an_empty_batch_is_not_handed_on() -> None:
    assert vq.Preprocessor(lambda images: 1 / 0)(IMAGES[:0]).shape == (0, 3, 8, 8)


MODULE = """
import torch
import vqshield as vq

def blur(images, strength=0.5):
    return images * strength

def make():
    return torch.nn.Identity()

class Halved(torch.nn.Module):
    def forward(self, images):
        return images / 2

ready = Halved()

def ours():
    return vq.PRD(codes=3)

def broken():
    return 1 / 0

def number():
    return 3
"""


@pytest.fixture
def user_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A file of a user's in the current folder."""
    (tmp_path / "own_shields.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield tmp_path / "own_shields.py"
    sys.modules.pop("own_shields", None)


@pytest.mark.parametrize(("name", "factor"), [("blur", 0.5), ("make", 1.0), ("Halved", 0.5), ("ready", 0.5)])
def test_a_text_names_the_preprocessor_or_what_makes_it(user_module: Path, name: str, factor: float) -> None:
    text = f"own_shields:{name}"
    defense = from_text(text, seed=3)
    assert torch.equal(defense(IMAGES), IMAGES * factor)
    assert defense.seed == 3
    assert defense.settings()["function"] == text
    assert torch.equal(vq.defend(nn.Flatten(), text)(IMAGES), (IMAGES * factor).flatten(1))


def test_the_source_tells_versions_apart(user_module: Path) -> None:
    before = from_text("own_shields:blur", seed=0).settings()["source"]
    user_module.write_text(MODULE.replace("0.5", "0.4"))
    assert from_text("own_shields:blur", seed=0).settings()["source"] != before


def test_a_defense_that_a_function_returns_is_taken_as_it_is(user_module: Path) -> None:
    assert repr(from_text("own_shields:ours", seed=3)) == repr(vq.PRD(codes=3, seed=3))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("own_shields:blurr", "own_shields has no function 'blurr'. Did you mean 'blur'"),
        ("nowhere:blur", "no module 'nowhere' can be imported"),
        ("own_shields:broken", r"broken\(\) failed: ZeroDivisionError"),
        ("own_shields:number", "returned int; it should return a module or a function"),
        ("swrd:size", "'size' in 'swrd:size' is not key=value"),
        ("jpeg:make", "'make' in 'jpeg:make' is not key=value"),
    ],
)
def test_texts_that_name_nothing_are_answered(user_module: Path, text: str, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        from_text(text, seed=0)


def test_what_is_a_preprocessor_by_its_text() -> None:
    texts = ("mine:blur", "a.b.c:blur", "swrd", "swrd:size=3", "swrd:size", "mine:blur,size=3", "mine:")
    assert [is_preprocessor(text) for text in texts] == [True, True, False, False, False, False, False]
