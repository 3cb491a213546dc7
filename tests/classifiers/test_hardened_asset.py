"""The bundled hardened classifier is the one for the shield that is offered with it."""

import json
from importlib import resources
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

import vqshield as vq
from vqshield.classifiers import load_classifier, small_cifar10, small_cifar10_hardened
from vqshield.core.errors import InvalidInputError
from vqshield.data import sample
from vqshield.models.draws import draw_predictions

RESULTS = Path(__file__).parents[2] / "paper" / "results"
ASSET = resources.files("vqshield.classifiers") / "assets" / "small-cifar10-hardened.safetensors"


@pytest.mark.skipif(not ASSET.is_file(), reason="small-cifar10-hardened.safetensors is not trained yet")
def test_it_is_small_and_better_behind_its_shield_than_the_plain_one():
    assert ASSET.stat().st_size <= 1_000_000
    with safe_open(ASSET, framework="pt") as file:
        trained_behind = vq.defenses.from_text(file.metadata()["shield"], seed=0)
    assert trained_behind.settings() == vq.SWRD.hardened("cifar10").settings()
    photos = sample(100)
    right = {}
    for name, classifier in (("plain", small_cifar10()), ("hardened", small_cifar10_hardened())):
        model = vq.Defended(classifier, vq.SWRD.hardened("cifar10", seed=0))
        right[name] = draw_predictions(model, photos.floats(), photos.labels, runs=2, batch=100).mean
    assert right["hardened"] >= right["plain"] + 0.05
    images = photos.floats()[:4]
    torch.testing.assert_close(
        load_classifier("small-cifar10-hardened")(images), small_cifar10_hardened()(images)
    )


def test_the_presets_are_those_that_the_ladder_measured():
    plan = json.loads((RESULTS / "ladder-cifar10-resnet18" / "ladder.json").read_text())
    measured = {each["name"]: each["defense"] for each in plan["subjects"]}
    for name, light in (("model", False), ("light", True)):
        told = vq.defenses.from_text(measured[name], seed=0)
        assert told.settings() == vq.SWRD.hardened("cifar10", light=light).settings()


@pytest.mark.parametrize("light", [False, True])
def test_other_data_have_none(light: bool):
    with pytest.raises(InvalidInputError, match="hardened='mnist' is unknown; choose one of cifar10"):
        vq.SWRD.hardened("mnist", light=light)
