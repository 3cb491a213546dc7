"""No attack inside the certified radius flips a certified vote: a single one would refute the certificate.

A few images here; paper/research/attack_certified_votes.py does it with hundreds, longer attacks, more draws.
"""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from vqshield.classifiers import small_cifar10
from vqshield.data import sample

SCRIPT = Path(__file__).resolve().parents[2] / "paper" / "research" / "attack_certified_votes.py"
IMAGES = 4


def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location(SCRIPT.stem, SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules[SCRIPT.stem] = module  # where dataclasses look for their annotations
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_no_certified_vote_flips() -> None:
    tool, classifier = script(), small_cifar10()
    plan = tool.Plan(n0=30, n=300, steps=8, eot=3, tries=2, votes=100)
    rows = [
        tool.attack_vote(classifier, image, number, plan)
        for number, image in enumerate(sample(IMAGES).floats().split(1))
    ]
    certified = [row for row in rows if row.radius > 0]
    assert len(certified) >= IMAGES // 2, "nothing certified, nothing tried"
    assert max(row.radius for row in certified) > 0.1
    assert [row for row in rows if row.flipped] == []
    for row in certified:  # the attacks went as far as they were allowed to
        assert row.attacks["ste"].distance == pytest.approx(0.999 * row.radius, rel=0.05)
        assert all(each.distance < row.radius for each in row.attacks.values())


@pytest.mark.slow
def test_the_same_attacks_flip_votes_far_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the test above would say nothing."""
    tool, classifier = script(), small_cifar10()
    monkeypatch.setattr(tool, "INSIDE", 12.0)
    plan = tool.Plan(n0=20, n=100, steps=10, eot=4, tries=1, votes=50)
    rows = [tool.attack_vote(classifier, image, 0, plan) for image in sample(2).floats().split(1)]
    assert any(row.flipped for row in rows)


def test_an_abstained_vote_is_not_attacked() -> None:
    tool = script()
    plan = tool.Plan(n0=1, n=2, defense="randdisc:codes=2")  # two draws prove nothing
    row = tool.attack_vote(torch.nn.Flatten(), torch.rand(1, 1, 2, 2), 0, plan)
    assert (row.answer, row.attacks, row.flipped) == (-1, {}, False)
