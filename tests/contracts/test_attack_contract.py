"""What every registered attack promises, on bare, defended and EOT-wrapped models, for any settings."""

import random
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
import torch
from conftest import noise_images
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import vqshield as vq
from vqshield.attacks import EOT, Attack, InBasis, ball, create, known_settings, list_attacks, list_norms
from vqshield.attacks.losses import TARGETED, list_losses
from vqshield.attacks.pgd import SCHEDULES
from vqshield.attacks.random_noise import KINDS
from vqshield.core.errors import InvalidInputError

BATCH, CLASSES, SIDE = 3, 4, 8
LARGEST = {"linf": 1.0, "l2": 4.0, "l1": 40.0}  # up to here: about as much as this data can use
small = st.integers(1, 2)
settings_of: Mapping[str, Mapping[str, st.SearchStrategy[Any]]] = {
    "pgd": {
        "steps": st.integers(1, 4),
        "step": st.one_of(st.sampled_from(["eps/4", "eps/10"]), st.floats(0, 2)),
        "schedule": st.sampled_from(SCHEDULES),
        "momentum": st.floats(0, 2),
        "loss": st.sampled_from([*list_losses(), TARGETED]),
        "random_start": st.booleans(),
        "restarts": small,
        "candidates": st.integers(1, 3),
        "judgements": small,
    },
    "apgd": {
        "steps": st.integers(1, 9),
        "loss": st.sampled_from(list_losses()),
        "random_start": st.booleans(),
        "restarts": small,
        "judgements": small,
    },
    "autoattack": {
        "version": st.sampled_from(["standard", "rand"]),
        "draws": small,
        "batch": st.sampled_from([1, 2, 250]),
        "judgements": small,
    },
    "square": {"queries": st.integers(2, 30), "p_init": st.floats(0, 1), "judgements": small},
    "noise": {"tries": st.integers(1, 3), "kind": st.sampled_from(KINDS), "judgements": small},
    "rays": {"queries": st.integers(2, 30), "tolerance": st.floats(1e-6, 1)},
}
EXAMPLES = {"autoattack": 5}  # hundreds of steps each; all others are cheap
CHEAP = 42  # with five cheap attacks, 210 settings


class Bare(nn.Module):
    """A classifier with parameters, some of them frozen, and buffers."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.first = nn.Conv2d(3, 4, 3, padding=1)
            self.last = nn.Linear(4 * SIDE * SIDE, CLASSES)
        self.first.bias.requires_grad_(False)
        self.register_buffer("mean", torch.full((1, 3, 1, 1), 0.5))

    def forward(self, images: Tensor) -> Tensor:
        return self.last(self.first(images - self.mean.to(images)).relu().flatten(1))


MODELS: dict[str, Callable[[], nn.Module]] = {
    "bare": Bare,
    "defended": lambda: vq.defend(Bare(), "prd", codes=4, iterations=2, seed=1),
    "eot": lambda: EOT(vq.defend(Bare(), "swrd", size=2, codes=4, iterations=2, seed=1), draws=2),
    "eot of logits": lambda: EOT(
        vq.defend(Bare(), "randdisc", codes=4, iterations=2, seed=1), draws=2, average="logits"
    ),
    "in a basis": lambda: InBasis(Bare(), "block4"),
}


def available(name: str) -> str:
    if name == "autoattack" and find_spec("pyautoattack") is None:
        pytest.skip("pyautoattack is not installed")
    return name


def norms_of(name: str) -> list[str]:
    """The norms that an attack knows; at least the L-inf one."""
    found = []
    for norm in list_norms():
        try:
            create(name, ball(norm, 0.1))
        except InvalidInputError:
            continue
        found.append(norm)
    assert "linf" in found
    return found


def taken(name: str, norm: str) -> None:
    if norm not in norms_of(name):
        pytest.skip(f"{name} knows no {norm} ball")


def state(model: nn.Module) -> list[Any]:
    """Everything that an attack must leave alone; how many draws a defense has made is its own affair."""
    own = {name: (v.clone(), v.requires_grad) for name, v in model.named_parameters()}
    kept = {name: v.clone() for name, v in model.named_buffers() if not name.endswith("_next_stream")}
    modes = {name: module.training for name, module in model.named_modules()}
    return [own, kept, modes, torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()]


def equal(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(equal, one, other))
    return bool(one == other)


@pytest.fixture(params=list_attacks())
def attack_name(request: pytest.FixtureRequest) -> str:
    return available(request.param)


@pytest.fixture
def tiny(attack_name: str) -> Callable[..., Attack]:
    """The attack with the least work that it can do."""
    least = {"pgd": {"steps": 2}, "apgd": {"steps": 3}, "square": {"queries": 6}, "noise": {"tries": 2}}
    least["rays"] = {"queries": 9}
    quick = least.get(attack_name, {"version": "rand", "draws": 1} if attack_name == "autoattack" else {})
    return lambda norm="linf", eps=0.1, **changes: create(attack_name, ball(norm, eps), **quick, **changes)


def test_every_setting_of_every_attack_is_tried() -> None:
    for name in list_attacks():
        assert {*settings_of[name], "seed"} == set(known_settings(name)), (
            f"give {name} a place in settings_of"
        )
    assert sum(EXAMPLES.get(name, CHEAP) for name in list_attacks()) > 200


@pytest.mark.parametrize("name", list_attacks())
def test_the_budget_is_kept_and_nothing_else_is_touched(name: str) -> None:
    available(name)

    @settings(max_examples=EXAMPLES.get(name, CHEAP))
    @given(data=st.data())
    def check(data: st.DataObject) -> None:
        norm = data.draw(st.sampled_from(norms_of(name)), label="norm")
        eps = data.draw(st.floats(0, LARGEST[norm]), label="eps")
        chosen = {key: data.draw(values, label=key) for key, values in settings_of[name].items()}
        seed = data.draw(st.integers(0, 2**64 - 1), label="seed")
        model = MODELS[data.draw(st.sampled_from(sorted(MODELS)), label="model")]()
        model.train(data.draw(st.booleans(), label="train"))
        dtype = data.draw(st.sampled_from([torch.float32, torch.float64]), label="dtype")
        images, labels = noise_images(BATCH, 3, SIDE, SIDE, seed=seed % 1000).to(dtype), torch.arange(BATCH)
        model.to(dtype)
        attack, clean, before = (
            create(name, ball(norm, eps), seed=seed, **chosen),
            images.clone(),
            state(model),
        )
        found = attack(model, images, labels)
        change = (found - images).double().flatten(1)
        length = change.norm(dim=1, p={"linf": torch.inf, "l2": 2, "l1": 1}[norm])
        assert float(length.max()) <= eps + 1e-6
        assert found.isfinite().all()
        assert 0 <= float(found.min()) <= float(found.max()) <= 1
        assert (found.shape, found.dtype, found.requires_grad) == (images.shape, dtype, False)
        assert torch.equal(images, clean)
        assert equal(state(model), before)
        assert all(parameter.grad is None for parameter in model.parameters())

    check()


@pytest.mark.parametrize("norm", list_norms())
def test_a_seed_repeats_the_attack_on_a_deterministic_model(attack_name, tiny, norm: str) -> None:
    taken(attack_name, norm)
    images, labels, model = noise_images(BATCH, 3, SIDE, SIDE), torch.arange(BATCH), Bare()
    first = tiny(norm, seed=5)(model, images, labels)
    torch.manual_seed(9)  # another state of the global generators
    assert torch.equal(tiny(norm, seed=5)(model, images, labels), first)
    if attack_name != "autoattack":  # where a single step breaks an image, its start does not show
        assert not torch.equal(tiny(norm, seed=6)(model, images, labels), first)


def test_a_seeded_defense_repeats_too(tiny) -> None:
    images, labels = noise_images(BATCH, 3, SIDE, SIDE), torch.arange(BATCH)
    results = [tiny()(MODELS["eot"](), images, labels) for _ in range(2)]
    assert torch.equal(*results)


@pytest.mark.parametrize("norm", list_norms())
def test_without_a_budget_the_images_come_back(attack_name, tiny, norm: str) -> None:
    taken(attack_name, norm)
    images, labels = noise_images(BATCH, 3, SIDE, SIDE), torch.arange(BATCH)
    for model in (Bare(), MODELS["eot"]()):
        assert torch.equal(tiny(norm, eps=0.0)(model, images, labels), images)


def test_an_empty_batch_is_returned(tiny) -> None:
    empty = torch.empty(0, 3, SIDE, SIDE)
    assert tiny()(Bare(), empty, torch.empty(0, dtype=torch.int64)).shape == empty.shape


def test_a_single_image_and_odd_shapes_work(attack_name, tiny) -> None:
    for channels, height, width in ((1, 7, 5), (2, 6, 11)):
        model = nn.Sequential(nn.Flatten(), nn.Linear(channels * height * width, CLASSES)).requires_grad_(
            False
        )
        for norm in norms_of(attack_name):
            images = noise_images(1, channels, height, width)
            assert tiny(norm)(model, images, torch.tensor([2])).shape == images.shape


def test_images_that_are_wrong_already_are_attacked_too(tiny) -> None:
    images, model = 0.2 + 0.6 * noise_images(8, 3, SIDE, SIDE), Bare()
    wrong = (model(images).argmax(1) + 1) % CLASSES
    moved = (tiny()(model, images, wrong) - images).abs().amax((1, 2, 3))
    assert float(moved.min()) > 0.01


def test_a_plain_function_is_a_model(tiny) -> None:
    images, labels = noise_images(BATCH, 3, SIDE, SIDE), torch.arange(BATCH)
    found = tiny()(lambda x: x.flatten(1)[:, :CLASSES], images, labels)
    assert float((found - images).abs().max()) <= 0.1 + 1e-6


def test_an_unknown_setting_is_answered_with_the_known_ones(attack_name) -> None:
    with pytest.raises(ValueError, match=r"has no setting 'speed'; it has .*seed"):
        create(attack_name, ball("linf", 0.1), speed=3)


def test_an_unknown_attack_is_answered_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="attack='magic' is unknown; choose one of apgd, autoattack"):
        create("magic", ball("linf", 0.1))
