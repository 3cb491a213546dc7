"""Recipes: optimizers, schedules, borders and first weights; repeatable, resumable, refused where wrong."""

import pytest
import torch
from safetensors.torch import load_file

from small_runs import TEST, TINY, TRAINING, Watcher, two_tones
from vqshield.classifiers import load_classifier
from vqshield.core.errors import FileFormatError, InvalidInputError
from vqshield.training.augment import crop_and_flip
from vqshield_paper.training import Recipe, train, train_on
from vqshield_paper.training.trainer import RecipeTrainer, cosine, stepwise

QUANTIZED = "swrd:size=2,codes=6,iterations=2,noise=shared,sigma=0.1,tau=0.1"
GOOD = {"data": "cifar10", "arch": "small"}


def settings(**changes):
    tiny = {"epochs": 2, "batch": 16, "peak_lr": 0.05, "options": TINY, "padding": 1}
    return Recipe(**{**GOOD, **tiny, **changes})


def run(out, chosen, **more):
    return train_on(chosen, TRAINING, TEST, out=out, **more)


def same(left, right):
    left, right = load_file(left), load_file(right)
    return left.keys() == right.keys() and all(torch.equal(left[key], right[key]) for key in left)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("epochs", 0),
        ("momentum", 1.0),
        ("weight_decay", -1e-4),
        ("optimizer", "lion"),
        ("schedule", "linear"),
        ("drop", 0.0),
        ("decay", "none"),
        ("border", "white"),
        ("milestones", (10,)),  # without schedule="step"
        ("schedule", "step"),  # without milestones
    ],
)
def test_bad_settings_are_named(name, value):
    with pytest.raises(InvalidInputError, match=name):
        Recipe(**{**GOOD, name: value})


@pytest.mark.parametrize("milestones", [(30,), (0,), (20, 10), (10, 10), (1.5,)])
def test_milestones_rise_within_the_run(milestones):
    with pytest.raises(InvalidInputError, match="milestones"):
        Recipe(**GOOD, epochs=30, schedule="step", milestones=milestones)
    assert Recipe(**GOOD, epochs=30, schedule="step", milestones=(10, 20)).milestones == (10, 20)


@pytest.mark.parametrize(
    "changes",
    [
        {"momentum": 0.0},
        {"optimizer": "adam", "peak_lr": 0.01, "schedule": "cosine", "border": "black"},
        {"schedule": "step", "milestones": (1, 2), "nesterov": False, "decay": "all"},
    ],
)
def test_an_interrupted_run_ends_with_the_very_same_weights(tmp_path, changes):
    chosen = settings(epochs=3, **changes)
    unbroken = run(tmp_path / "unbroken", chosen)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "broken", chosen, progress=Watcher(stop_in=2))
    watcher = Watcher()
    resumed = run(tmp_path / "broken", chosen, progress=watcher)
    assert watcher.resumed == 1
    assert same(unbroken.weights, resumed.weights)


def test_the_optimizer_and_what_decay_pulls_are_those_asked_for(tmp_path):
    adam = RecipeTrainer(settings(optimizer="adam"), TRAINING, TEST, torch.device("cpu")).optimizer
    assert isinstance(adam, torch.optim.Adam)
    for decay, expected in (("weights", 0.0), ("all", 5e-4)):
        optimizer = RecipeTrainer(settings(decay=decay), TRAINING, TEST, torch.device("cpu")).optimizer
        weights, others = optimizer.param_groups
        assert (weights["weight_decay"], others["weight_decay"]) == (5e-4, expected)
        assert {each.ndim for each in others["params"]} == {1}


def test_without_normalising_the_network_sees_the_pixels_as_they_are(tmp_path):
    plain = load_classifier(run(tmp_path, settings(normalise=False, epochs=1)).weights)
    assert (plain.mean.flatten().tolist(), plain.std.flatten().tolist()) == ([0.0] * 3, [1.0] * 3)


def test_a_black_border_moves_as_a_mirrored_one_does():
    images = torch.randint(1, 256, (40, 3, 6, 5), dtype=torch.uint8)
    stand_in = type("StandIn", (), {"settings": settings(border="black", padding=2, flip=True)})()
    black = RecipeTrainer.augmented(stand_in, images, torch.Generator().manual_seed(3))
    mirrored = crop_and_flip(images, padding=2, flip=True, generator=torch.Generator().manual_seed(3))
    assert (black == 0).any()
    assert torch.equal(torch.where(black == 0, mirrored, black), mirrored)
    assert (black[:, :, 2:-2, 2:-2] > 0).all()


def test_a_cosine_goes_from_the_peak_through_its_half_towards_nothing():
    rates = [cosine(step, steps=200, peak=0.1) for step in range(200)]
    assert rates[0] == 0.1
    assert rates[100] == pytest.approx(0.05)
    assert rates == sorted(rates, reverse=True)
    assert 0 < rates[-1] < 1e-5


def test_steps_drop_the_rate_at_each_milestone():
    rates = [stepwise(step, peak=0.1, milestones=(60, 120, 160), drop=0.2) for step in range(200)]
    assert (rates[0], rates[59]) == (0.1, 0.1)
    assert rates[60] == rates[119] == pytest.approx(0.02)
    assert rates[120] == pytest.approx(0.004)
    assert rates[160] == rates[199] == pytest.approx(0.0008)


def test_fine_tuning_goes_on_where_the_file_ends(tmp_path):
    first = run(tmp_path / "first", settings(epochs=4))
    barely = settings(start=first.weights, peak_lr=1e-12, momentum=0.0, weight_decay=0.0, epochs=1)
    tuned = run(tmp_path / "tuned", barely)
    before, after = load_file(first.weights), load_file(tuned.weights)
    assert all(torch.equal(before[key], after[key]) for key in before if key.endswith("conv1.weight"))
    old, new = load_classifier(first.weights), load_classifier(tuned.weights)
    assert torch.equal(old.mean, new.mean)
    start = tuned.card["settings"]["start"]
    assert start["file"] == "small-cifar10.safetensors"
    assert len(start["sha256"]) == 64
    assert str(tmp_path) not in tuned.card_file.read_text()


def test_a_resumed_fine_tuning_equals_an_unbroken_one(tmp_path):
    first = run(tmp_path / "first", settings())
    chosen = settings(start=str(first.weights), shield=QUANTIZED, epochs=3, seed=4)
    unbroken = run(tmp_path / "unbroken", chosen)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "broken", chosen, progress=Watcher(stop_in=3))
    assert same(unbroken.weights, run(tmp_path / "broken", chosen).weights)
    other = run(tmp_path / "other", settings(seed=1))
    with pytest.raises(InvalidInputError, match="start="):  # the same name, other weights
        run(tmp_path / "broken", settings(start=other.weights, shield=QUANTIZED, epochs=3, seed=4))


def test_a_start_of_another_network_is_refused_with_both(tmp_path):
    first = run(tmp_path / "first", settings())
    with pytest.raises(InvalidInputError, match=r"holds small .*\[4, 6\].*trains small .*\[4\]"):
        run(tmp_path / "2", settings(start=first.weights, options={"widths": [4], "blocks": [1]}))
    with pytest.raises(InvalidInputError, match=r"holds small .*trains resnet18"):
        run(tmp_path / "2", settings(start=first.weights, arch="resnet18", options={}))
    assert not (tmp_path / "2").exists()


def test_the_start_is_never_written_over(tmp_path):
    first = run(tmp_path, settings())
    before = first.weights.read_bytes()
    with pytest.raises(InvalidInputError, match="give another out"):
        run(tmp_path, settings(start=first.weights), fresh=True)
    assert first.weights.read_bytes() == before


def test_a_start_that_is_no_classifier_is_named(tmp_path):
    with pytest.raises(InvalidInputError, match=r"start='.*missing.safetensors' is not a file"):
        settings(start=tmp_path / "missing.safetensors")
    (tmp_path / "broken.safetensors").write_bytes(b"no")
    with pytest.raises(FileFormatError, match="not a safetensors file"):
        run(tmp_path, settings(start=tmp_path / "broken.safetensors"))


def test_from_a_folder(tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    for name, count in [*((f"data_batch_{i}.bin", 8) for i in range(1, 6)), ("test_batch.bin", 8)]:
        part = two_tones(count, seed=2, size=32)
        rows = torch.cat([part.labels.byte()[:, None], part.images.flatten(1)], dim=1)
        (data / name).write_bytes(rows.numpy().tobytes())
    result = train(settings(padding=4), folder=data, out=tmp_path / "out", device="cpu")
    assert result.weights == tmp_path / "out" / "small-cifar10.safetensors"
