"""Work that is cut into cells: what a runner, whether here or on a cluster, needs to know of it.

A cell is a pure function of the specification: wherever, whenever and in whatever order cells are measured,
the records are the same, and they are written in the order of the cells.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import torch

from vqshield.runs.records import AnyLine, Key, RecordFolder

if TYPE_CHECKING:
    from vqshield.runs.executors.base import Executor


class Keyed(Protocol):
    """What every cell can say."""

    @property
    def keys(self) -> Sequence[Key]:
        """What its records are of."""
        ...


AnyCell = TypeVar("AnyCell", bound=Keyed)

Report = Callable[[str, int], None]
"""Told what is going on, and how much of the work is done in all."""


class Work(Protocol, Generic[AnyCell, AnyLine]):
    """Everything that is measured into one folder of records."""

    specification: dict[str, Any]
    cells: Sequence[AnyCell]
    records: RecordFolder[AnyLine]

    def measure(self, cell: AnyCell) -> list[AnyLine]:
        """The records of one cell, in the order of its keys."""
        ...

    def cost(self, cell: AnyCell) -> int:
        """How much work it is: what a progress bar counts."""
        ...

    def title(self, cell: AnyCell) -> str:
        """What a progress bar says meanwhile."""
        ...


class Recipe(Protocol):
    """What another process makes the same work from; it is pickled, so it should be small."""

    def rebuild(self, folder: Path) -> Work[Any, Any]:
        """The work whose records are in that folder of the process that writes them."""
        ...


class ResumableWork(ABC, Generic[AnyCell, AnyLine]):
    """A Work that runs itself: all but the measuring."""

    specification: dict[str, Any]
    cells: Sequence[AnyCell]
    records: RecordFolder[AnyLine]
    recipe: Recipe | None = None
    """Where the work was made from one: then it can be run by other processes too."""

    def __init__(self, report: Report) -> None:
        self._report = report

    @abstractmethod
    def measure(self, cell: AnyCell) -> list[AnyLine]:
        """The records of one cell, in the order of its keys."""

    @abstractmethod
    def cost(self, cell: AnyCell) -> int:
        """How much work it is: what a progress bar counts."""

    @abstractmethod
    def title(self, cell: AnyCell) -> str:
        """What a progress bar says meanwhile."""

    @property
    def work(self) -> int:
        """How much work all of it is."""
        return sum(map(self.cost, self.cells))

    def run(self, executor: "Executor | None" = None) -> None:
        """Do what is not done yet; without an executor, in this process."""
        from vqshield.runs.executors.local import LocalExecutor  # they are written in terms of Work

        (executor or LocalExecutor()).run(self, report=self._report, recipe=self.recipe)

    def _tell(self, cell: AnyCell, done: int) -> None:
        """Report that so much of a cell is done, up to its cost, which may be an estimate."""
        self._report(self.title(cell), self._before[cell] + min(done, self.cost(cell)))

    @cached_property
    def _before(self) -> dict[AnyCell, int]:
        """How much work comes before each cell, whichever process does it."""
        return dict(zip(self.cells, accumulate(map(self.cost, self.cells), initial=0), strict=False))


@contextmanager
def repeatable() -> Iterator[None]:
    """cuDNN may otherwise choose, at every call, a faster way whose last bits depend on chance."""
    flags = torch.backends.cudnn
    with flags.flags(enabled=flags.enabled, benchmark=False, deterministic=True, allow_tf32=flags.allow_tf32):
        yield
