"""Study: what is measured of a target, cut into cells.

A study is a small, frozen description: it is pickled as it is for other processes, which load what it names.
A cell is a pure function of the study: wherever, whenever and in whatever order cells are measured, the
records are the same, and they are written in the order of the cells.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import torch
from torch import nn

from vqshield.core.progress import Progress as Progress
from vqshield.core.progress import no_progress as no_progress
from vqshield.models.calling import evaluating
from vqshield.runs.manifests import read_manifest
from vqshield.runs.records import AnyRecord, Key, Record, RecordFolder

CellProgress = Callable[[str, int], None]
"""Told what is being done, and how much of a cell is done, up to its cost, which may be an estimate."""


def no_cell_progress(doing: str, done: int) -> None:
    """Tell nobody."""


class Steps:
    """Work done step by step: what a step reports is reported as part of the whole.

    Args:
        progress: called for all of it.
        total: how much work there is.
    """

    def __init__(self, progress: Progress, total: int) -> None:
        self.total, self._done, self._progress = total, 0, progress

    def tell(self, doing: str, done: int = 0) -> None:
        """Report; done: how much of the step that runs."""
        self._progress(doing, self._done + done, self.total)

    @contextmanager
    def step(self, work: int, title: str = "") -> Iterator[Progress]:
        """A step of that much work, with a progress of its own; the title stands before all it reports."""
        yield lambda doing, done, total: self.tell(
            f"{title}{doing}", work * min(done, total) // max(total, 1)
        )
        self._done += work


class Cell(Protocol):
    """The unit of work: what every kind of cell can say."""

    @property
    def keys(self) -> Sequence[Key]:
        """What its records are of."""
        ...


AnyCell = TypeVar("AnyCell", bound=Cell)
AnyManifest = TypeVar("AnyManifest")


@dataclass(frozen=True, kw_only=True)
class Recorded(Generic[AnyManifest, AnyRecord]):
    """What a folder holds: the manifest, the records so far, and how long each defense and attack took."""

    manifest: AnyManifest
    records: Sequence[AnyRecord]
    seconds: dict[tuple[str, str], float]


@dataclass(frozen=True, kw_only=True)
class Study(ABC, Generic[AnyManifest, AnyCell, AnyRecord]):
    """Base of every study; subclasses are frozen dataclasses with a target and what is asked of it."""

    manifest_type: ClassVar[type[Any]]
    record_type: ClassVar[type[Record]]

    @cached_property
    @abstractmethod
    def manifest(self) -> AnyManifest:
        """What its records are of, in full; loads the target."""

    @staticmethod
    @abstractmethod
    def cells_of(manifest: Any) -> Sequence[Any]:
        """All the work that a manifest stands for, in the order of the records."""

    @classmethod
    def parse(cls, line: bytes) -> Any:
        """The record of a line of its file."""
        return cls.record_type.parse(line)

    @staticmethod
    def problem(manifest: Any, record: Any) -> str | None:
        """What a record says that no measurement can have given, in words; None where nothing does."""
        return None

    @abstractmethod
    def measure(self, cell: AnyCell, progress: CellProgress = no_cell_progress) -> list[AnyRecord]:
        """The records of one cell, in the order of its keys; progress is told how much of the cell is
        done.
        """

    @abstractmethod
    def cost(self, cell: AnyCell) -> int:
        """How much work a cell is: what a progress bar counts."""

    @abstractmethod
    def title(self, cell: AnyCell) -> str:
        """What a progress bar says while a cell is measured."""

    def needs(self, cell: AnyCell) -> Hashable | None:
        """What a cell finds and leaves for others: equal for cells that need the same; None: nothing."""
        return None

    @property
    def module(self) -> nn.Module | None:
        """What is asked, if anything is: it is in evaluation mode while cells are measured."""
        return None

    @property
    def travels(self) -> bool:
        """Whether another process can measure it."""
        return True

    @cached_property
    def cells(self) -> Sequence[AnyCell]:
        """All the work."""
        return self.cells_of(self.manifest)

    @cached_property
    def work(self) -> int:
        """How much work all of it is."""
        return sum(map(self.cost, self.cells))

    def folder(self, path: Path) -> RecordFolder[AnyRecord]:
        """The records of this study in a folder."""
        return self._records(path, self.manifest)

    @classmethod
    def read(cls, path: Path) -> Recorded[AnyManifest, AnyRecord]:
        """What a folder holds of a study of this kind, finished or not; the target is not needed."""
        manifest = read_manifest(cls.manifest_type, path)
        folder = cls._records(path, manifest)
        records = folder.read()
        return Recorded(manifest=manifest, records=records, seconds=folder.seconds(records))

    @classmethod
    def _records(cls, path: Path, manifest: AnyManifest) -> RecordFolder[AnyRecord]:
        keys = [cell.keys for cell in cls.cells_of(manifest)]
        return RecordFolder(path, keys, cls.parse, lambda record: cls.problem(manifest, record))

    def in_memory(self, progress: Progress = no_progress) -> Recorded[AnyManifest, AnyRecord]:
        """Measure all of it here, without a folder."""
        records: list[AnyRecord] = []
        done = 0
        for cell in self.cells:
            records += measure_repeatably(self, cell, within(progress, self, cell, done))
            done += self.cost(cell)
            progress(self.title(cell), done, self.work)
        return Recorded(manifest=self.manifest, records=records, seconds={})

    def __getstate__(self) -> dict[str, Any]:
        """The fields alone: what was loaded or derived does not travel."""
        return {each.name: getattr(self, each.name) for each in fields(self)}


def chunks(count: int, size: int) -> list[range]:
    """The numbers below count in chunks of that size; the last may be smaller."""
    return [range(first, min(first + size, count)) for first in range(0, count, size)]


def measure_repeatably(
    study: Study[Any, AnyCell, AnyRecord], cell: AnyCell, progress: CellProgress
) -> list[AnyRecord]:
    """One cell, in this process, with the arithmetic that gives the same bits every time."""
    with repeatable(), evaluating(study.module):
        return study.measure(cell, progress)


def within(progress: Progress, study: Study[Any, AnyCell, Any], cell: AnyCell, before: int) -> CellProgress:
    """The progress of a cell as progress of its study, of which `before` is done."""
    cost, total = study.cost(cell), study.work
    return lambda doing, done: progress(doing, before + min(done, cost), total)


@contextmanager
def repeatable() -> Iterator[None]:
    """cuDNN may otherwise choose, at every call, a faster way whose last bits depend on chance."""
    flags = torch.backends.cudnn
    with flags.flags(enabled=flags.enabled, benchmark=False, deterministic=True, allow_tf32=flags.allow_tf32):
        yield
