"""The executor for one process: cell after cell, here."""

from collections.abc import Generator
from dataclasses import dataclass

from vqshield.runs.executors.base import Executor, Measured, measure
from vqshield.runs.records import AnyLine
from vqshield.runs.study import AnyCell, Recipe, Work


@dataclass(frozen=True, kw_only=True)
class LocalExecutor(Executor):
    """Measures in this process; work that reports inside a cell is heard."""

    def measured(
        self, work: Work[AnyCell, AnyLine], first: int, recipe: Recipe | None
    ) -> Generator[Measured[AnyLine], None, None]:
        """Each cell when it is asked for."""
        for cell in work.cells[first:]:
            yield measure(work, cell)
