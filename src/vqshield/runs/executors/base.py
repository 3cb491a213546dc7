"""Executor: the one loop that every run goes through; what differs is where cells are measured."""

import time
from abc import ABC, abstractmethod
from collections.abc import Generator, Hashable
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Generic, Protocol, runtime_checkable

from vqshield.runs.records import AnyLine
from vqshield.runs.study import AnyCell, Recipe, Report, Work, repeatable

HELD = 16
"""So many cells for each that runs may be begun ahead: a long cell does not stop all others."""


@dataclass(frozen=True, kw_only=True)
class Measured(Generic[AnyLine]):
    """The records of one cell, and how long they took."""

    records: list[AnyLine]
    seconds: float


class Executor(ABC):
    """Runs work: whatever the executor, the records are the same and in the order of the cells."""

    def run(
        self, work: Work[AnyCell, AnyLine], *, report: Report = lambda *_: None, recipe: Recipe | None = None
    ) -> None:
        """Do what is not done yet. What is finished, as are all cells before it, is kept whatever happens.

        recipe: what other processes make the work from, for executors that need some.
        """
        with work.records.writing(self.specification(work)) as writer:
            left = work.cells[writer.done :]
            done = sum(map(work.cost, work.cells[: writer.done]))
            if not left:  # a finished run starts no cluster
                return
            # Closed at once whatever happens: a cluster should not go on for somebody who has left.
            with closing(self.measured(work, len(work.cells) - len(left), recipe)) as results:
                for cell, found in zip(left, results, strict=True):
                    writer.append(found.records, seconds=found.seconds)
                    done += work.cost(cell)
                    report(work.title(cell), done)

    def specification(self, work: Work[AnyCell, AnyLine]) -> dict[str, Any]:
        """What the records are of, as the manifest says it."""
        return work.specification

    @abstractmethod
    def measured(
        self, work: Work[AnyCell, AnyLine], first: int, recipe: Recipe | None
    ) -> Generator[Measured[AnyLine], None, None]:
        """The cells from number `first` on, in their order."""


def measure(work: Work[AnyCell, AnyLine], cell: AnyCell) -> Measured[AnyLine]:
    """One cell, in this process."""
    began = time.perf_counter()
    with repeatable():
        found = work.measure(cell)
    return Measured(records=found, seconds=time.perf_counter() - began)


@runtime_checkable
class Sharing(Protocol):
    """Work whose cells need the same things, which the first of them finds and leaves for the others."""

    def common(self, cell: Any) -> Hashable | None:
        """What it needs, equal for cells that need the same; None: nothing that others need, too."""
        ...


def finders(work: Work[Any, Any], first: int) -> dict[int, int]:
    """For every cell from number `first` on that needs what an earlier one finds, the number of that one."""
    found: dict[int, int] = {}
    if not isinstance(work, Sharing):
        return found
    finder: dict[Hashable, int] = {}
    for number in range(first, len(work.cells)):
        needed = work.common(work.cells[number])
        if needed is not None and finder.setdefault(needed, number) != number:
            found[number] = finder[needed]
    return found
