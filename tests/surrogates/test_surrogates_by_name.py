"""Surrogates by name, as objects and as functions; and when Defended asks for one at all."""

import re

import pytest
import torch
from conftest import noise_images
from torch import Tensor, nn

import vqshield as vq
from vqshield import surrogates
from vqshield.attacks import EOT
from vqshield.surrogates import Given, Score, Shielding, Soft, StraightThrough, Surrogate


def test_names_and_settings_make_surrogates() -> None:
    assert surrogates.list_surrogates() == ["ste", "soft", "score", "own", "learned"]
    assert surrogates.get("ste") == StraightThrough()
    assert surrogates.get("score") == Score()
    assert surrogates.get("soft") == Soft()
    assert surrogates.get("soft:temperature=1/10,centres=unrolled,rounds=2,noise=drawn") == Soft(
        temperature=0.1, centres="unrolled", rounds=2, noise="drawn"
    )
    assert surrogates.known_settings("soft") == ["temperature", "centres", "rounds", "noise"]
    assert surrogates.known_settings("ste") == surrogates.known_settings("score") == []


def test_objects_and_functions_are_taken_as_they_are() -> None:
    mine = Soft(temperature=0.2)
    assert surrogates.get(mine) is mine

    def identity(images: Tensor, quantized: Tensor) -> Tensor:
        return quantized + images - images.detach()

    assert surrogates.get(identity) == Given(identity)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("hard", "surrogate='hard' is unknown; choose one of learned, own, score, soft, ste"),
        ("none", "surrogate='none' is unknown"),
        ("soft:heat=3", "soft has no setting 'heat'; it has temperature, centres, rounds, noise"),
        ("ste:temperature=3", "ste has no setting 'temperature'; it has none at all"),
        ("soft:temperature=cold", "temperature='cold' should be a number, not str"),
        ("soft:rounds=0", "rounds=0 should be >= 1"),
        ("soft:", "'soft:' has no settings after the colon"),
        ("", "'' does not start with a name"),
        (3, "surrogate should be a name, not int"),
        (None, "surrogate should be a name, not NoneType"),
    ],
)
def test_what_is_no_surrogate_is_named(given: object, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        surrogates.get(given)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=re.escape(message)):
        vq.Defended(nn.Identity(), vq.PRD(), surrogate=given)  # type: ignore[arg-type]


class Counting(Surrogate):
    def __init__(self) -> None:
        self.asked: list[Shielding] = []

    def logits(self, classifier, shielding: Shielding) -> Tensor:
        self.asked.append(shielding)
        return classifier(shielding.quantized + shielding.images - shielding.images.detach())


def mean(images: Tensor) -> Tensor:
    return images.mean((2, 3))


def test_a_surrogate_is_asked_only_where_a_gradient_is_wanted() -> None:
    counting = Counting()
    model = vq.Defended(mean, vq.PRD(codes=3, seed=1), surrogate=counting)
    images = noise_images(2, 3, 6, 6)
    model(images)
    with torch.no_grad():
        model(images.clone().requires_grad_())
    assert counting.asked == []
    model(images.clone().requires_grad_())
    assert len(counting.asked) == 1


def test_a_surrogate_is_told_what_made_the_draw() -> None:
    counting, defense = Counting(), vq.SWRD(size=2, codes=3, seed=1)
    images = noise_images(2, 3, 6, 6).requires_grad_()
    model = vq.Defended(mean, defense, surrogate=counting)
    model(images)
    model(images)
    for told, streams in zip(counting.asked, ([0, 1], [2, 3]), strict=True):
        assert told.images is images
        assert told.defense is defense
        assert told.streams.tolist() == streams
        assert torch.equal(told.quantized, defense(images.detach(), streams=told.streams))
        assert not told.quantized.requires_grad


def layers() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4 * 36, 2))


@pytest.mark.parametrize("training", [True, False])
def test_a_wrapper_is_in_the_mode_of_what_it_wraps(training: bool) -> None:
    classifier = layers().train(training)
    defended = vq.Defended(classifier, vq.PRD(codes=3))
    assert defended.training is EOT(defended).training is training
    assert all(module.training is training for module in classifier.modules())
    assert EOT(classifier).training is training


def test_wrapping_leaves_the_modes_of_layers_alone() -> None:
    """A network in training whose normalisation is frozen, as one has it for fine-tuning."""
    classifier = layers().train()
    classifier[1].eval()
    EOT(vq.Defended(classifier, vq.PRD(codes=3)))
    assert [layer.training for layer in classifier] == [True, False, True, True]


def test_functions_count_as_ready_for_use() -> None:
    assert vq.Defended(mean, vq.PRD()).training is EOT(mean).training is False


def test_the_mode_can_still_be_changed_from_outside() -> None:
    classifier = layers().eval()
    EOT(vq.Defended(classifier, vq.PRD(codes=3))).train()
    assert all(module.training for module in classifier.modules())
