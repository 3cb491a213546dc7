"""Executor: the one loop that every run goes through; what differs is where cells are measured."""

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Generator, Hashable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic

from vqshield.runs.records import AnyRecord
from vqshield.runs.study import (
    AnyCell,
    CellProgress,
    Progress,
    Study,
    measure_repeatably,
    no_cell_progress,
    no_progress,
)

_LOG = logging.getLogger("vqshield")
HELD = 16
"""Cells that may be begun ahead for each that runs: one long cell does not stop all others."""


@dataclass(frozen=True, kw_only=True)
class Measured(Generic[AnyRecord]):
    """The records of one cell, and how long they took."""

    records: list[AnyRecord]
    seconds: float


class Executor(ABC):
    """Runs studies: whatever the executor, the records are the same and in the order of the cells."""

    def run(
        self, study: Study[Any, AnyCell, AnyRecord], folder: Path, *, progress: Progress = no_progress
    ) -> None:
        """Measure what is not measured yet. Every finished cell whose predecessors are finished is kept.

        Args:
            study: what to measure.
            folder: where its records are, or will be; a run that was stopped continues there.
            progress: told what is being done, how much is done, and how much there is.
        """
        manifest = self.manifest(study)
        with study.folder(folder).writing(manifest) as writer:
            first = writer.done
            done = sum(map(study.cost, study.cells[:first]))
            if first == len(study.cells):  # a finished run starts no cluster
                return
            # Closed at once whatever happens: a cluster should not go on for somebody who has left.
            with closing(self.measured(study, first, progress)) as results:
                for cell, found in zip(study.cells[first:], results, strict=True):
                    writer.append(found.records, seconds=found.seconds)
                    _LOG.debug(
                        "%s: %d records in %.1f s", study.title(cell), len(found.records), found.seconds
                    )
                    done += study.cost(cell)
                    progress(study.title(cell), done, study.work)

    def manifest(self, study: Study[Any, Any, Any]) -> Any:
        """What the records are of, as manifest.json says it."""
        return study.manifest

    @abstractmethod
    def measured(
        self, study: Study[Any, AnyCell, AnyRecord], first: int, progress: Progress
    ) -> Generator[Measured[AnyRecord], None, None]:
        """The cells from number `first` on, in their order; progress inside a cell may be told."""


def measure(
    study: Study[Any, AnyCell, AnyRecord], cell: AnyCell, progress: CellProgress = no_cell_progress
) -> Measured[AnyRecord]:
    """One cell, in this process."""
    began = time.perf_counter()
    found = measure_repeatably(study, cell, progress)
    return Measured(records=found, seconds=time.perf_counter() - began)


def finders(study: Study[Any, Any, Any], first: int) -> dict[int, int]:
    """For every cell from number `first` on that needs what an earlier one finds, the number of that one."""
    found: dict[int, int] = {}
    finder: dict[Hashable, int] = {}
    for number in range(first, len(study.cells)):
        needed = study.needs(study.cells[number])
        if needed is not None and finder.setdefault(needed, number) != number:
            found[number] = finder[needed]
    return found
