"""What studies are asked for: defenses by text and back, targets by names and tensors."""

import pytest
import torch
from torch import nn

import vqshield as vq
from vqshield.classifiers import small_cifar10
from vqshield.core.errors import InvalidInputError
from vqshield.data import sample
from vqshield.defended import defend
from vqshield.defenses import PRD, create, list_defenses
from vqshield.runs.arguments import defense_from, split_model, target_from


@pytest.mark.parametrize("name", list_defenses())
def test_a_defense_is_the_one_that_its_text_stands_for(name: str) -> None:
    assert create(name).spec == name
    chosen = create(name, codes=7, sigma=1 / 3, tau=1e-5, noise="image", iterations=3, init="random", seed=9)
    again = defense_from(chosen.spec, seed=0)
    assert type(again) is type(chosen)
    assert again.settings() == chosen.settings()


@pytest.mark.parametrize("backend", ["auto", "torch"])
def test_the_backend_is_kept(backend: str) -> None:
    assert defense_from(create("prd", backend=backend).spec, seed=0).backend == backend


def test_a_defense_of_ones_own_is_named() -> None:
    class Mine(PRD):
        pass

    assert Mine().spec is None
    with split_model(defend(nn.Identity(), Mine(codes=3)), None) as (_, (text,)):
        assert text == "in memory: Mine"
        assert defense_from(text, seed=4).settings() == Mine(codes=3).settings()
    with pytest.raises(InvalidInputError, match="'in memory: Mine' is in the memory of another process"):
        defense_from(text, seed=4)


def test_a_defended_model_is_its_classifier_and_its_defense() -> None:
    model = nn.Identity()
    for given, found in (
        (defend(model, "swrd", size=2), (model, ("swrd:size=2",))),
        (defend(model, "jpeg:quality=50"), (model, ("jpeg:quality=50",))),
        (model, (model, ("none",))),
        ("small-cifar10", ("small-cifar10", ("none",))),
    ):
        with split_model(given, None) as split:
            assert split == found


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("small-cifar10", "small-cifar10"),
        (small_cifar10(), "SmallResNet, in memory"),
        (nn.Sequential(nn.Flatten(), nn.Linear(3072, 10)), "Sequential, in memory"),
    ],
)
def test_a_title_names_the_classifier_that_was_given(model: nn.Module | str, name: str) -> None:
    photos = sample(2)
    found = vq.evaluate(model, photos.floats(), photos.labels, attacks=[], samples=1, device="cpu")
    assert found.title.endswith(f"classifier {name}")


def test_names_alone_make_a_target_that_travels() -> None:
    options = {"limit": 2, "data_dir": None, "device": "cpu"}
    by_name = target_from("small-cifar10", "cifar10-sample", None, **options)
    assert by_name.travels
    data = by_name.images
    mixed = [
        target_from(by_name.model, "cifar10-sample", None, **options),
        target_from("small-cifar10", data.floats(), data.labels, **options),
    ]
    for target in mixed:
        assert not target.travels
        assert len(target.images) == 2
        assert torch.equal(target.part(range(2))[0], by_name.part(range(2))[0])
        assert torch.equal(target.part(range(2))[1], data.labels)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({}, "swrd"),
        ({"noise": "image"}, "swrd:noise=image"),
        ({"weights_from": "noisy"}, "swrd:weights_from=noisy"),
    ],
)
def test_a_default_that_follows_from_others_is_not_written(settings: dict, text: str) -> None:
    """The text names the draws of a run: it must be the one that a user would write."""
    assert create("swrd", **settings).spec == text
