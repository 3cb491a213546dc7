"""Attacks on the bare classifier: found once for all defenses, and kept for the chunk that is worked on."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from vqshield.attacks import PGD, ball
from vqshield.attacks.threats import Threat
from vqshield.core.display_names import NONE
from vqshield.evaluation.study import Evaluation
from vqshield.runs.adversarial import AdversarialStore
from vqshield.runs.executors import LocalExecutor
from vqshield.runs.target import Target

DEFENSES = ("prd:codes=4", "randdisc:codes=3", "swrd:codes=4")
IGNORANT, STE = "pgd:steps=2,surrogate=none", "pgd:steps=2"
NATURAL = torch.rand(2, 3, 4, 4, generator=torch.Generator().manual_seed(0))
LABELS = torch.tensor([0, 2])
ATTACK = PGD(ball=ball("linf", 0.1), steps=2)


@pytest.fixture(scope="module")
def study() -> Evaluation:
    """Five images of three classes, and a network of one layer."""
    source = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (5, 3, 8, 8), dtype=torch.uint8, generator=source).float() / 255
    layer = nn.Linear(3 * 8 * 8, 3)
    layer.weight.data = torch.randn(layer.weight.shape, generator=source)
    layer.bias.data.zero_()
    model = nn.Sequential(nn.Flatten(), layer)
    target = Target.in_memory(model, images, model(images).argmax(1))
    return Evaluation(target=target, defenses=DEFENSES, attacks=(IGNORANT,), eps=0.1, runs=3, batch=2)


@pytest.fixture
def attacks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The seeds of all attacks that were run."""
    seeds: list[int] = []
    original = PGD.run

    def counted(self: PGD, model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
        seeds.append(self.seed)
        return original(self, model, images, labels)

    monkeypatch.setattr(PGD, "run", counted)
    return seeds


def records(study: Evaluation, folder: Path) -> bytes:
    LocalExecutor().run(study, folder)
    return (folder / "records.jsonl").read_bytes()


class Finder:
    """Stands for what an attack finds, and counts how often it is asked."""

    def __init__(self, found: Tensor) -> None:
        self.found, self.asked = found, 0


@pytest.fixture
def find(monkeypatch: pytest.MonkeyPatch) -> Finder:
    finder = Finder(moved())

    def run(self: PGD, model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
        finder.asked += 1
        return finder.found

    monkeypatch.setattr(PGD, "run", run)
    return finder


def ask(
    store: AdversarialStore,
    *,
    images: Tensor = NATURAL,
    labels: Tensor = LABELS,
    attack: PGD = ATTACK,
    surrogate: str = NONE,
) -> Tensor:
    threat = Threat(name="pgd", level="ignorant", attack=attack, surrogate=surrogate)
    return store.bare(threat, nn.Identity(), images, labels)


def moved(by: float = 0.05) -> Tensor:
    return (NATURAL + by * torch.rand(NATURAL.shape, generator=torch.Generator().manual_seed(1))).clamp(0, 1)


def test_an_attack_that_ignores_the_defense_runs_once_for_all_defenses(
    study: Evaluation, tmp_path: Path, attacks: list[int]
) -> None:
    records(replace(study, defenses=(*DEFENSES, "none")), tmp_path)
    assert len(attacks) == len(set(attacks)) == 3, "one for each chunk"


def test_an_attack_through_the_defense_runs_for_each(
    study: Evaluation, tmp_path: Path, attacks: list[int]
) -> None:
    records(replace(study, attacks=(STE,)), tmp_path)
    assert len(attacks) == len(set(attacks)) == 3 * 3


def test_records_do_not_depend_on_the_store(
    study: Evaluation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = replace(study, attacks=(STE, IGNORANT))
    plain = records(both, tmp_path / "plain")

    def found(_: AdversarialStore, threat: Threat, model: nn.Module, *given: Tensor) -> Tensor:
        return replace(threat, surrogate=NONE)(model, None, *given)

    monkeypatch.setattr(AdversarialStore, "bare", found)
    assert plain == records(replace(both), tmp_path / "without")


def test_memory_holds_the_chunk_that_is_worked_on(find: Finder) -> None:
    kept, find.found = AdversarialStore(), NATURAL
    for images in (NATURAL, NATURAL.clone(), NATURAL.flip(0), NATURAL):
        ask(kept, images=images)
    assert find.asked == 3


@pytest.mark.parametrize(
    "change",
    [
        {"attack": replace(ATTACK, steps=3)},
        {"attack": replace(ATTACK, ball=ball("linf", 0.2))},
        {"attack": replace(ATTACK, ball=ball("l2", 0.1))},
        {"attack": replace(ATTACK, seed=8)},
        {"images": NATURAL.flip(0)},
        {"images": NATURAL.view(2, 3, 2, 8)},
        {"labels": LABELS.flip(0)},
    ],
)
def test_another_question_is_another_attack(find: Finder, change: dict) -> None:
    kept = AdversarialStore()
    for question in ({}, change):
        find.found = question.get("images", NATURAL).clone()
        ask(kept, **question)
    assert find.asked == 2


def test_what_an_attacker_would_put_in_place_of_the_defense_does_not_count(find: Finder) -> None:
    kept = AdversarialStore()
    for surrogate in (NONE, "ste", NONE):
        assert torch.equal(ask(kept, surrogate=surrogate), find.found)
    assert find.asked == 1
