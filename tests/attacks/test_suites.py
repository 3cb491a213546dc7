"""Suites: named, versioned, and never changed once released."""

import re
from dataclasses import replace

import pytest
import torch
from conftest import noise_images
from torch import nn

import vqshield as vq
from vqshield.attacks import L2, PGD, Linf, RayS, Square
from vqshield.attacks.suites import expand, list_suites, suite, with_precision
from vqshield.attacks.threats import Threat, threat
from vqshield.auditing import AuditSettings
from vqshield.core.errors import InvalidInputError
from vqshield.ladders.settings import LadderSettings
from vqshield.surrogates import Soft, StraightThrough, get

BALL = Linf(8 / 255)
SOFT, DRAWN = Soft(temperature=0.03), Soft(temperature=0.1, noise="drawn")
UNROLLED = Soft(temperature=0.03, centres="unrolled")

# What the versions mean, for good. A stronger ensemble is a new name, not an edit here.
RELEASED = {
    "adaptive-v1": {
        "adaptive-v1/soft-margin": ("adaptive", SOFT, "margin", 5, 60, 4, "pixels"),
        "adaptive-v1/soft-entropy": ("adaptive", DRAWN, "cross-entropy", 5, 60, 4, "pixels"),
        "adaptive-v1/soft-blocks": ("adaptive", SOFT, "margin", 5, 60, 4, "block2"),
        "adaptive-v1/ste-margin": ("eot", StraightThrough(), "margin", 5, 60, 4, "pixels"),
    },
    "adaptive-v1-quick": {
        "adaptive-v1-quick/soft-margin": ("adaptive", SOFT, "margin", 4, 20, 1, "pixels"),
        "adaptive-v1-quick/ste-margin": ("eot", StraightThrough(), "margin", 4, 20, 1, "pixels"),
    },
    "adaptive-v2": {
        "adaptive-v2/soft-margin": ("adaptive", SOFT, "margin", 5, 60, 4, "pixels"),
        "adaptive-v2/soft-entropy": ("adaptive", DRAWN, "cross-entropy", 5, 60, 4, "pixels"),
        "adaptive-v2/soft-blocks": ("adaptive", SOFT, "margin", 5, 60, 4, "block2"),
        "adaptive-v2/ste-margin": ("eot", StraightThrough(), "margin", 5, 60, 4, "pixels"),
        "adaptive-v2/unrolled-margin": ("adaptive", UNROLLED, "margin", 10, 100, 4, "pixels"),
        "adaptive-v2/unrolled-targeted": ("adaptive", UNROLLED, "targeted-margin", 5, 60, 4, "pixels"),
    },
}
RESTARTS = {"adaptive-v2/unrolled-targeted": 3}


def test_what_earlier_results_were_made_with_names_its_step() -> None:
    """The usual step of pgd may change; ladders, boards and audits stay comparable with recorded ones."""
    texts = [AuditSettings().probe]
    for settings in (LadderSettings(), LadderSettings.quick()):
        texts += [settings.ignorant, settings.transfer]
    for text in texts:
        (member,) = expand(text, BALL)
        assert member.attack.step == "eps/10"


def test_every_suite_is_pinned() -> None:
    assert list_suites() == [*RELEASED, "queries-v1"]


@pytest.mark.parametrize("room", [BALL, L2(0.5)], ids=str)
def test_queries_v1_is_ten_thousand_calls_by_score_and_by_decision(room) -> None:
    members = suite("queries-v1", room, seed=3)
    assert [(each.name, each.attack, each.eot, each.level) for each in members] == [
        ("queries-v1/square-1", Square(ball=room, queries=9992, seed=3), 1, "black-box"),
        ("queries-v1/square-5", Square(ball=room, queries=1992, seed=3), 5, "black-box"),
        ("queries-v1/rays-1", RayS(ball=room, queries=10_000, seed=3), 1, "black-box"),
        ("queries-v1/rays-5", RayS(ball=room, queries=2000, seed=3), 5, "black-box"),
    ]
    for each in members:
        assert (each.attack.queries + each.attack.uncounted_queries()) * each.eot == 10_000


@pytest.mark.parametrize("room", [BALL, L2(0.5)], ids=str)
@pytest.mark.parametrize("name", RELEASED)
def test_a_version_means_what_it_always_meant(name: str, room) -> None:
    members = suite(name, room, seed=3)
    assert [each.name for each in members] == list(RELEASED[name])
    for each in members:
        level, surrogate, loss, eot, steps, candidates, basis = RELEASED[name][each.name]
        attack = PGD(
            ball=room, steps=steps, step=room.eps / 4, schedule="cosine", momentum=0.75, loss=loss,
            candidates=candidates, seed=3, restarts=RESTARTS.get(each.name, 1),
        )  # fmt: skip
        assert each.attack == attack
        assert get(each.surrogate) == surrogate
        assert (each.level, each.eot, each.average, each.basis) == (level, eot, "gradients", basis)


def test_the_second_version_holds_all_of_the_first() -> None:
    """So it leaves at most as much of every image, up to the luck of the draws that choose a member."""
    first, second = ([replace(each, name=each.name.partition("/")[2]) for each in suite(name, BALL, seed=5)]
                     for name in ("adaptive-v1", "adaptive-v2"))  # fmt: skip
    assert second[: len(first)] == first
    assert len(second) > len(first)


def test_members_differ_and_can_be_looked_up() -> None:
    for name in list_suites():
        members = suite(name, BALL)
        assert len(set(members)) == len({each.name for each in members}) == len(members) > 1
        assert members == suite(name, BALL)
        assert not set(members) & set(suite(name, Linf(4 / 255)))


@pytest.mark.parametrize("name", RELEASED)
def test_a_suites_name_stands_for_its_members(name: str) -> None:
    assert expand(name, BALL, seed=7) == suite(name, BALL, seed=7)


def test_a_threat_stands_for_itself() -> None:
    text = "pgd:steps=3,eot=2"
    assert expand(text, BALL, seed=7) == [threat(text, BALL, seed=7)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("adaptive-v1:steps=3", "'adaptive-v1:steps=3' has settings; a suite such as adaptive-v1 takes none"),
        (
            "adaptive-v0",
            "attack='adaptive-v0' is unknown; choose one of adaptive-v1, adaptive-v1-quick, adaptive-v2, ",
        ),
        ("pgd:luck=1", "pgd has no setting 'luck'"),
        ("", "'' does not start with a name"),
    ],
)
def test_mistakes_are_answered_with_what_is_known(text: str, message: str) -> None:
    with pytest.raises(InvalidInputError, match=re.escape(message)):
        expand(text, BALL)


def test_an_unknown_suite_is_answered_with_the_known_ones() -> None:
    with pytest.raises(InvalidInputError, match="suite='pgd' is unknown; choose one of adaptive-v1"):
        suite("pgd", BALL)


def test_the_quick_suite_runs_and_keeps_the_budget() -> None:
    images, labels = noise_images(2, 3, 8, 8), torch.tensor([0, 1])
    with torch.random.fork_rng():
        torch.manual_seed(0)
        classifier = nn.Sequential(nn.Flatten(), nn.Linear(192, 3)).eval()
    found = []
    for member in suite("adaptive-v1-quick", BALL):
        assert isinstance(member, Threat)
        found.append(member(classifier, vq.SWRD(size=2, codes=5, seed=1), images, labels))
        assert float((found[-1] - images).abs().max()) <= BALL.eps + 1e-6
    assert not torch.equal(*found)


@pytest.mark.parametrize("name", list_suites())
def test_a_faster_suite_is_the_same_but_for_its_precision_and_names(name: str) -> None:
    usual, fast = expand(name, BALL, seed=3), expand(f"{name}:precision=bf16", BALL, seed=3)
    assert [each.precision for each in fast] == ["bf16"] * len(usual)
    assert [each.name.replace(":precision=bf16", "") for each in fast] == [each.name for each in usual]
    assert all(each.name.startswith(f"{name}:precision=bf16/") for each in fast)
    for one, other in zip(usual, fast, strict=True):
        assert replace(other, precision="float32", name=one.name) == one


def test_a_precision_is_added_to_a_text_that_names_none() -> None:
    assert with_precision("noise", "tf32") == "noise:precision=tf32"
    assert with_precision("pgd:steps=3,precision=bf16", "tf32") == "pgd:steps=3,precision=bf16"
    assert with_precision("adaptive-v1", "float32") == "adaptive-v1"
    with pytest.raises(InvalidInputError, match="precision='fp8' is unknown"):
        with_precision("noise", "fp8")
