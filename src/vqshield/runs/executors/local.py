"""The executor for one process: cell after cell, here."""

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

from vqshield.runs.executors.base import Executor, Measured, measure
from vqshield.runs.records import AnyRecord
from vqshield.runs.study import AnyCell, Progress, Study, within


@dataclass(frozen=True, kw_only=True)
class LocalExecutor(Executor):
    """Measures in this process; progress inside a cell is heard."""

    def measured(
        self, study: Study[Any, AnyCell, AnyRecord], first: int, progress: Progress
    ) -> Generator[Measured[AnyRecord], None, None]:
        done = sum(map(study.cost, study.cells[:first]))
        for cell in study.cells[first:]:
            yield measure(study, cell, within(progress, study, cell, done))
            done += study.cost(cell)
