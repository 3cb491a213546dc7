"""Attacks on the bare classifier: found once for all defenses, and kept for the chunk that is worked on."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from bare_attacks import (
    ATTACK,
    DEFENSES,
    IGNORANT,
    LABELS,
    NATURAL,
    STE,
    Finder,
    count_attacks,
    one_layer,
    records,
)
from vqshield.attacks import PGD, ball
from vqshield.attacks.threats import Threat
from vqshield.core.display_names import NONE
from vqshield.evaluation.study import Evaluation
from vqshield.runs.adversarial import AdversarialStore


@pytest.fixture(scope="module")
def study() -> Evaluation:
    return Evaluation(target=one_layer(), defenses=DEFENSES, attacks=(IGNORANT,), eps=0.1, runs=3, batch=2)


@pytest.fixture
def attacks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    return count_attacks(monkeypatch)


@pytest.fixture
def find(monkeypatch: pytest.MonkeyPatch) -> Finder:
    return Finder(monkeypatch)


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
