"""A shielded model is a model like any other: other libraries' PGD does to it what ours does."""

import importlib
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
# The package beside the example; "art" alone is also the name of a package for letters made of letters.
LIBRARIES = {"foolbox": "foolbox", "torchattacks": "torchattacks", "art": "art.attacks.evasion"}


@pytest.fixture
def comparison(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(EXAMPLES)
    return importlib.import_module("comparison")


@pytest.fixture(params=LIBRARIES)
def example(request: pytest.FixtureRequest, comparison: ModuleType) -> ModuleType:
    pytest.importorskip(LIBRARIES[request.param])
    return importlib.import_module(f"attack_with_{request.param}")


@pytest.fixture
def settings(comparison: ModuleType):
    return comparison.Settings(images=40, steps=5, draws=3, runs=5)


@pytest.mark.slow
def test_accuracy_agrees_within_two_standard_errors(example: ModuleType, settings) -> None:
    result = example.compare(settings)
    assert result.standard_error > 0  # two attacks with noise of their own, not one compared with itself
    assert result.ours.mean() < result.natural.mean() / 2
    assert result.agree, f"difference {result.difference}, standard error {result.standard_error}"


@pytest.mark.slow
def test_an_attack_with_half_the_budget_does_not_agree(example, comparison, settings) -> None:
    def weaker(model, images, labels, settings):
        return example.attack(model, images, labels, replace(settings, eps=settings.eps / 2))

    result = comparison.compare(weaker, settings)
    assert result.difference > 0
    assert not result.agree, f"difference {result.difference}, standard error {result.standard_error}"


@pytest.mark.slow
def test_by_the_same_noise_the_same_images_are_found(example, comparison, settings) -> None:
    settings = replace(settings, images=20, steps=4, random_start=False)
    images, labels = comparison.data(settings)

    def found(attack, seed):
        return attack(comparison.attacked_model(settings, seed=seed), images, labels, settings)

    def alike(first, second):
        return float(((first - second).abs().flatten(1).amax(1) < 1e-5).double().mean())

    theirs = found(example.attack, seed=5)
    assert alike(theirs, found(comparison.our_attack, seed=5)) >= 0.95  # rounding may turn a sign
    assert alike(theirs, found(comparison.our_attack, seed=6)) == 0


@pytest.mark.slow
def test_attacking_leaves_the_model_and_the_global_randomness_as_they_were(
    example, comparison, settings
) -> None:
    settings = replace(settings, images=2, steps=1, draws=1)
    model = comparison.attacked_model(settings, seed=0)
    weights = {name: value.clone() for name, value in model.named_parameters()}
    ours, numpys = torch.get_rng_state(), np.random.get_state()[1].copy()
    example.attack(model, *comparison.data(settings), settings)
    assert not any(module.training for module in model.modules())
    assert all(torch.equal(value, weights[name]) for name, value in model.named_parameters())
    assert all(value.grad is None for value in model.parameters())
    assert torch.equal(torch.get_rng_state(), ours)
    assert np.array_equal(np.random.get_state()[1], numpys)


def test_the_standard_error_is_that_of_the_paired_difference(comparison: ModuleType) -> None:
    theirs, ours = torch.tensor([1.0, 0.5, 0.0, 0.5]), torch.tensor([0.5, 0.5, 0.0, 0.0])
    result = comparison.Comparison(torch.ones(4), theirs.double(), ours.double())
    differences = [0.5, 0.0, 0.0, 0.5]
    assert result.difference == pytest.approx(np.mean(differences))
    assert result.standard_error == pytest.approx(np.std(differences, ddof=1) / 2)
    assert result.agree
    assert not comparison.Comparison(torch.ones(4), ours + 0.5, ours).agree


def test_images_outside_of_the_budget_are_refused(comparison: ModuleType) -> None:
    settings = comparison.Settings(images=2, steps=1, draws=1, runs=1)

    def too_far(model, images, labels, settings):
        return (images + 2 * settings.eps).clamp(0, 1)

    def broken(model, images, labels, settings):
        return images * torch.nan

    for attack in (too_far, broken):
        with pytest.raises(comparison.VqshieldError, match=r"outside of eps=0\.03"):
            comparison.compare(attack, settings)


def test_the_table_names_both_attacks_and_the_verdict(comparison: ModuleType) -> None:
    settings = comparison.Settings(images=2, steps=7, draws=3)
    right = torch.tensor([0.5, 0.0]).double()
    text = comparison.table("foolbox", comparison.Comparison(right * 2, right, right), settings)
    assert "PGD-7 + EOT-3" in text
    for who in ("foolbox", "vqshield"):
        (line,) = [line for line in text.splitlines() if line.startswith(who)]
        assert line.split() == [who, "50.0", "25.0"]
    assert "attacks agree within 2 standard errors" in text
    other = comparison.table("foolbox", comparison.Comparison(right, right + 0.5, right), settings)
    assert "do NOT agree" in other


@pytest.mark.parametrize(("name", "value"), [("images", 1), ("images", 501), ("steps", 0), ("seed", -1)])
def test_bad_settings_are_named(comparison: ModuleType, name: str, value: int) -> None:
    with pytest.raises(ValueError, match=f"{name}={value} should be"):
        comparison.Settings(**{name: value})
