"""Training behind a shield and from given weights: repeatable, resumable, and refused where it cannot be."""

import json

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from test_trainer import run, settings

from small_runs import TEST, TRAINING, Watcher
from vqshield.classifiers import load_classifier
from vqshield.core.errors import InvalidInputError
from vqshield.defenses import from_text
from vqshield.training.settings import TrainSettings
from vqshield.training.shielding import TrainingShield, accuracy

GAUSSIAN, QUANTIZED = "gaussian:sigma=0.1", "swrd:size=2,codes=6,iterations=2,noise=shared,sigma=0.1,tau=0.1"
CPU = torch.device("cpu")


def same(left, right):
    left, right = load_file(left), load_file(right)
    return left.keys() == right.keys() and all(torch.equal(left[key], right[key]) for key in left)


@pytest.mark.parametrize("text", [GAUSSIAN, QUANTIZED])
def test_it_learns_repeatably_and_the_card_says_behind_what(tmp_path, text):
    first = run(tmp_path / "1", settings(epochs=4, shield=text))
    again = run(tmp_path / "2", settings(epochs=4, shield=text))
    assert same(first.weights, again.weights)
    assert first.card["test_accuracy"] == again.card["test_accuracy"] >= 0.9
    card = json.loads(first.card_file.read_text())
    assert (card["settings"]["shield"], card["settings"]["start"]) == (text, None)
    with safe_open(first.weights, framework="pt") as file:
        assert file.metadata()["shield"] == text
    for number, other in enumerate([settings(epochs=4), settings(epochs=4, shield=text, seed=1)]):
        assert not same(first.weights, run(tmp_path / f"other {number}", other).weights)


@pytest.mark.parametrize("text", [GAUSSIAN, QUANTIZED])
def test_an_interrupted_run_ends_with_the_very_same_weights(tmp_path, text):
    chosen = settings(epochs=3, shield=text)
    unbroken = run(tmp_path / "unbroken", chosen)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "broken", chosen, progress=Watcher(stop_in=2))
    resumed = run(tmp_path / "broken", chosen)
    assert same(unbroken.weights, resumed.weights)
    seen = [
        [(epoch["loss"], epoch["test_accuracy"]) for epoch in result.card["history"]]
        for result in (unbroken, resumed)
    ]
    assert seen[0] == seen[1]


def test_the_written_accuracy_is_that_behind_the_shield(tmp_path):
    result = run(tmp_path, settings(shield="gaussian:sigma=2"))
    model = load_classifier(result.weights)
    behind = TrainingShield("gaussian:sigma=2", seed=0, device=CPU)
    assert accuracy(model, TEST.images, TEST.labels, shield=behind) == result.card["test_accuracy"]


def test_every_step_meets_other_noise_and_tests_the_same():
    behind, images = TrainingShield(GAUSSIAN, seed=0, device=CPU), TRAINING.images[:4]
    draws = [behind.training(images, step=step) for step in (0, 1, 2)]
    draws.append(behind.test(images, first=0))
    assert len({draw.flatten()[0].item() for draw in draws}) == 4
    assert torch.equal(behind.training(images, step=1), draws[1])
    assert torch.equal(behind.test(images[2:], first=2), draws[3][2:])
    noise = torch.stack(draws[:3]) - images.float() / 255
    assert len(noise[:, :, 0, 0, 0].flatten().round(decimals=5).unique()) == 12  # no two images share theirs
    other = TrainingShield(GAUSSIAN, seed=1, device=CPU)
    assert not torch.equal(other.training(images, step=0), draws[0])


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("shield9", "defense='shield9' is unknown; choose one of bitdepth, essential, gaussian, jpeg"),
        ("none", "defense='none' is unknown"),
        ("gaussian", "gaussian takes sigma"),
        ("prd:sise=2", "no setting 'sise'"),
        ("prd:seed=1", "would fix every draw"),
        ("swrd:noise=shared,sigma=0.1,tau=0.2", "sigma=0.1 and tau=0.2 should be equal"),
    ],
)
def test_bad_shields_are_named(text, named):
    with pytest.raises(InvalidInputError, match=named):
        settings(shield=text)


def test_a_shield_too_large_for_the_images_is_refused_before_any_work(tmp_path):
    with pytest.raises(InvalidInputError, match="size=9 should be at most"):
        run(tmp_path / "out", settings(shield="prd:size=9"))
    assert not (tmp_path / "out").exists()


def test_another_shield_on_resume_is_named(tmp_path):
    run(tmp_path, settings(shield=GAUSSIAN))
    with pytest.raises(InvalidInputError, match=r"shield='gaussian:sigma=0.1', this run has shield=None"):
        run(tmp_path, settings())


def test_the_settings_of_an_old_checkpoint_still_fit():
    old = {key: value for key, value in settings().to_dict().items() if key not in ("shield", "start")}
    new = settings().to_dict()
    assert all(old.get(key) == new[key] for key in new)
    assert TrainSettings(data="cifar10", arch="small").to_dict()["start"] is None


def test_the_shield_is_the_one_of_the_text():
    behind = TrainingShield(QUANTIZED, seed=0, device=CPU)
    assert behind._training.settings() == from_text(QUANTIZED, seed=0).settings()
