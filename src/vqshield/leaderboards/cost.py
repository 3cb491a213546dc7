"""The cost of a defense: milliseconds per image, of the defense alone and of the model behind it."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from vqshield.core import checks
from vqshield.core.display_names import NONE
from vqshield.defended import Defended
from vqshield.runs.arguments import defense_from
from vqshield.runs.attack_study import AttackCell
from vqshield.runs.manifests import DefenseId, TargetManifest
from vqshield.runs.records import Key, Record
from vqshield.runs.study import CellProgress, TargetStudy, no_cell_progress

COST = "cost"


@dataclass(frozen=True, kw_only=True)
class CostRecord(Record):
    """Medians of repeated calls on `batch` images, in milliseconds per image.

    defense_ms: the defense alone, 0 for none; model_ms: the defense and the classifier.
    """

    batch: int
    defense_ms: float
    model_ms: float

    @property
    def key(self) -> Key:
        return self.defense, COST, 0


@dataclass(frozen=True, kw_only=True)
class CostManifest(TargetManifest):
    """What was timed, and where."""

    defense: DefenseId
    batch: int
    repeats: int


@dataclass(frozen=True, kw_only=True)
class Cost(TargetStudy[CostManifest, AttackCell, CostRecord]):
    """The time per image, as one cell. Unlike other records, these depend on what else the machine does.

    Attributes:
        defense: a spec string; "none": the bare classifier.
        batch: images in a call, or all of the target's if there are fewer.
        repeats: calls whose median counts.
    """

    defense: str = NONE
    batch: int = 100
    repeats: int = 5

    manifest_type = CostManifest
    record_type = CostRecord

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.whole("batch", self.batch, least=1)
        checks.whole("repeats", self.repeats, least=1)
        _ = self.built  # refuses an unknown defense

    @staticmethod
    def cells_of(manifest: CostManifest) -> list[AttackCell]:
        return [AttackCell(defense=manifest.defense.name, attack=COST, images=range(1))]

    def measure(self, cell: AttackCell, progress: CellProgress = no_cell_progress) -> list[CostRecord]:
        images, _ = self.target.part(range(self.batch))
        defense, model = defense_from(self.defense, seed=0), self.target.model
        if defense is not None:
            defense = defense.to(images.device)
            model = Defended(model, defense)
        return [
            CostRecord(
                defense=cell.defense,
                batch=len(images),
                defense_ms=0.0 if defense is None else self._milliseconds(defense, images),
                model_ms=self._milliseconds(model, images),
            )
        ]

    def cost(self, cell: AttackCell) -> int:
        return 2 * (self.repeats + 1) * self.batch  # once more to warm up

    def title(self, cell: AttackCell) -> str:
        return f"{cell.defense}, {COST}"

    @torch.no_grad()
    def _milliseconds(self, call: Callable[[Tensor], Tensor], images: Tensor) -> float:
        seconds = []
        for _ in range(self.repeats + 1):
            start = time.perf_counter()
            call(images)
            if images.is_cuda:
                torch.cuda.synchronize(images.device)
            seconds.append(time.perf_counter() - start)
        _, *warm = seconds  # in the first call caches fill, and kernels are compiled
        return round(1000 * statistics.median(warm) / len(images), 4)
