"""Attacks on a bare classifier that are counted, for the tests of what keeps the images they find."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from vqshield.attacks import PGD, ball
from vqshield.runs.executors import LocalExecutor
from vqshield.runs.study import AnyStudy
from vqshield.runs.target import Target

DEFENSES = ("prd:codes=4", "randdisc:codes=3", "swrd:codes=4")
IGNORANT, STE = "pgd:steps=2,surrogate=none", "pgd:steps=2"
NATURAL = torch.rand(2, 3, 4, 4, generator=torch.Generator().manual_seed(0))
LABELS = torch.tensor([0, 2])
ATTACK = PGD(ball=ball("linf", 0.1), steps=2)


def one_layer() -> Target:
    """Five images of three classes, and a network of one layer."""
    source = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (5, 3, 8, 8), dtype=torch.uint8, generator=source).float() / 255
    layer = nn.Linear(3 * 8 * 8, 3)
    layer.weight.data = torch.randn(layer.weight.shape, generator=source)
    layer.bias.data.zero_()
    model = nn.Sequential(nn.Flatten(), layer)
    return Target.in_memory(model, images, model(images).argmax(1))


def moved(by: float = 0.05) -> Tensor:
    return (NATURAL + by * torch.rand(NATURAL.shape, generator=torch.Generator().manual_seed(1))).clamp(0, 1)


def records(study: AnyStudy, folder: Path) -> bytes:
    LocalExecutor().run(study, folder)
    return (folder / "records.jsonl").read_bytes()


def count_attacks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The seeds of all attacks that are run from now on."""
    seeds: list[int] = []
    original = PGD.run

    def counted(self: PGD, model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
        seeds.append(self.seed)
        return original(self, model, images, labels)

    monkeypatch.setattr(PGD, "run", counted)
    return seeds


class Finder:
    """Stands for what an attack finds, and counts how often it is asked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.found, self.asked = moved(), 0
        monkeypatch.setattr(PGD, "run", lambda _attack, _model, _images, _labels: self._find())

    def _find(self) -> Tensor:
        self.asked += 1
        return self.found
