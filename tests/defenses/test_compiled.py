"""torch.compile: a compiled defense is that defense, whatever was compiled before it or is changed after."""

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from conftest import noise_images
from torch import Tensor, nn

import vqshield as vq

IMAGES, STREAMS = noise_images(2, 3, 9, 10), torch.arange(2)
USUAL: dict[str, Any] = {"codes": 4, "seed": 1, "backend": "torch"}
OTHERS: dict[str, dict[str, Any]] = {
    "size": {"size": 2},
    "codes": {"codes": 9},
    "beta": {"beta": 500.0},
    "sigma": {"sigma": 0.3},
    "tau": {"tau": 0.3},
    "noise": {"noise": "image"},
    "weights_from": {"weights_from": "noisy", "beta": 500.0, "tau": 0.3},
    "iterations": {"iterations": 1},
    "init": {"init": "random"},
    "tolerance": {"tolerance": 1.0},
    "sample": {"sample": 8},
    "seed": {"seed": 2},
}


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def compiled(model: nn.Module) -> nn.Module:
    return torch.compile(model, fullgraph=True, backend="eager")


def drawn(model: nn.Module) -> Tensor:
    return model(IMAGES, streams=STREAMS)


@pytest.mark.parametrize("setting", OTHERS)
def test_a_second_compiled_defense_has_its_own_settings(setting: str) -> None:
    first, second = vq.SWRD(**USUAL), vq.SWRD(**{**USUAL, **OTHERS[setting]})
    plain = drawn(first), drawn(second)
    assert not torch.equal(*plain), "the setting changes nothing here: choose other values"
    for _ in range(2):
        assert torch.equal(drawn(compiled(first)), plain[0])
        assert torch.equal(drawn(compiled(second)), plain[1])


@pytest.mark.parametrize("setting", ["backend", "memory", "padding"])
def test_settings_that_rarely_show_reach_a_compiled_defense_too(
    setting: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    run = vq.defenses.quantizer.operators.Job.run
    monkeypatch.setattr(
        "vqshield.quantization.operators.Job.run",
        lambda job, *rest: (seen.append(job.encode()), run(job, *rest))[1],
    )
    other: dict[str, Any] = {
        "backend": {"backend": "auto"}, "memory": {"memory": 999}, "padding": {"padding": "reflect"},
    }[setting]  # fmt: skip
    pair = [vq.PRD(**USUAL), vq.PRD(**{**USUAL, **other})]
    for defense in pair:
        drawn(compiled(defense))
    assert seen == [defense._job for defense in pair]
    assert seen[0] != seen[1]


def test_many_compiled_defenses_keep_apart() -> None:
    many = [vq.PRD(**{**USUAL, "seed": seed}) for seed in range(6)]
    ready = [compiled(each) for each in many]
    for _ in range(2):
        for model, defense in zip(ready, many, strict=True):
            assert torch.equal(drawn(model), drawn(defense))


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_change_after_compiling_is_noticed(wrapped: bool) -> None:
    defense = vq.SWRD(**USUAL)
    model = vq.Defended(nn.Flatten(), defense) if wrapped else defense
    ready = compiled(model)
    before = drawn(ready)
    for name, value in {"sigma": 0.3, "beta": 9.0, "seed": 7, "codes": 5}.items():
        setattr(defense, name, value)
        after = drawn(ready)
        assert not torch.equal(after, before), f"{name} was ignored"
        assert torch.equal(after, drawn(model))
        before = after


def test_another_seed_is_another_compiled_defense() -> None:
    defense = vq.PRD(**USUAL)
    ready, other = compiled(defense), compiled(defense.reseeded(5))
    assert torch.equal(drawn(ready), drawn(defense))
    assert torch.equal(drawn(other), drawn(vq.PRD(**{**USUAL, "seed": 5})))


def test_compiled_models_behind_different_defenses_keep_apart() -> None:
    models = [vq.Defended(nn.Flatten(), vq.PRD(**{**USUAL, "tau": tau})) for tau in (0.0, 0.3)]
    for model in models:
        assert torch.equal(drawn(compiled(model)), drawn(model))


def test_a_noiseless_defense_does_not_take_the_noise_from_an_unseeded_one() -> None:
    still = vq.PRD(codes=4, sigma=0.0, tau=0.0, init="random", backend="torch")
    compiled(still)(IMAGES)
    noisy = compiled(vq.PRD(codes=4, sigma=0.2, tau=0.2, backend="torch"))
    assert not torch.equal(noisy(IMAGES), noisy(IMAGES))
    assert len(torch.unique(noisy(IMAGES)[0, 0])) > len(torch.unique(still(IMAGES)[0, 0])) // 4


def test_compiled_gaussian_noise_keeps_apart_too() -> None:
    for sigma in (0.1, 0.3):
        noise = vq.GaussianNoise(sigma=sigma, seed=1)
        ready = torch.compile(noise, backend="eager")
        assert torch.equal(drawn(ready), drawn(noise))


def test_an_assigned_setting_is_checked_like_a_given_one() -> None:
    defense = vq.SWRD(**USUAL, noise="shared")
    with pytest.raises(ValueError, match="sigma=-1 should be from 0 to 1"):
        defense.sigma = -1
    with pytest.raises(ValueError, match=r"sigma=0\.2 and tau=0\.0156\d+ should be equal"):
        defense.sigma = 0.2
    with pytest.raises(ValueError, match="weights_from='clean' should be 'noisy'"):
        defense.weights_from = "clean"
    with pytest.raises(AttributeError, match="size"):
        defense.size = 2
    assert defense.settings() == vq.SWRD(**USUAL, noise="shared").settings()
    assert torch.equal(drawn(defense), drawn(vq.SWRD(**USUAL, noise="shared")))


def test_the_import_leaves_the_compiler_out() -> None:
    """It takes seconds, and few who import vqshield compile anything."""
    code = "import sys, vqshield; print([name for name in sys.modules if name.startswith('torch._dynamo')])"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"
