"""Study: what is measured of a target, cut into cells.

A study is a small, frozen description: it is pickled as it is for other processes, which load what it names.
A cell is a pure function of the study: wherever, whenever and in whatever order cells are measured, the
records are the same, and they are written in the order of the cells.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, fields
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from torch import Tensor, nn

import vqshield
from vqshield.core.environment import environment
from vqshield.core.errors import InvalidInputError
from vqshield.core.progress import Progress as Progress
from vqshield.core.progress import no_progress as no_progress
from vqshield.defenses import Defense
from vqshield.models.calling import repeatable
from vqshield.runs.adversarial import AdversarialStore
from vqshield.runs.arguments import defense_from
from vqshield.runs.code import CodeId
from vqshield.runs.manifests import DefenseId, TargetManifest, read_manifest
from vqshield.runs.records import AnyRecord, Key, Record, RecordFolder
from vqshield.runs.target import Target

CellProgress = Callable[[str, int], None]
"""Called with what is being done, and how much of a cell is done: up to its cost, which may be estimated."""


def no_cell_progress(doing: str, done: int) -> None:
    """Ignore the report."""


class Steps:
    """Work done step by step, `total` in all: the reports of each step become reports of the whole."""

    def __init__(self, progress: Progress, total: int) -> None:
        self.total, self._done, self._progress = total, 0, progress

    def tell(self, doing: str, done: int = 0) -> None:
        """Report; done: how much of the step that runs."""
        self._progress(doing, self._done + done, self.total)

    @contextmanager
    def step(self, work: int, title: str = "") -> Iterator[Progress]:
        """A step of that much work, with a progress of its own; all its reports start with the title."""
        yield lambda doing, done, total: self.tell(
            f"{title}{doing}", work * min(done, total) // max(total, 1)
        )
        self._done += work


class Cell(Protocol):
    """The unit of work; keys: of its records."""

    @property
    def keys(self) -> Sequence[Key]: ...


AnyCell = TypeVar("AnyCell", bound=Cell)
AnyManifest = TypeVar("AnyManifest")


@dataclass(frozen=True, kw_only=True)
class Measured:
    """The records of one cell, and how long they took."""

    records: list[Any]
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Recorded(Generic[AnyManifest, AnyRecord]):
    """What a folder holds: the manifest, the records so far, and how long each defense and attack took."""

    manifest: AnyManifest
    records: Sequence[AnyRecord]
    seconds: dict[tuple[str, str], float]


@dataclass(frozen=True, kw_only=True)
class Study(ABC, Generic[AnyManifest, AnyCell, AnyRecord]):
    """Base of every study; subclasses are frozen dataclasses with their settings as fields."""

    manifest_type: ClassVar[type[Any]]
    record_type: ClassVar[type[Record]]

    @cached_property
    @abstractmethod
    def manifest(self) -> AnyManifest:
        """The complete settings of its records; loads the target."""

    @staticmethod
    @abstractmethod
    def cells_of(manifest: AnyManifest) -> Sequence[AnyCell]:
        """All the work of a manifest, in the order of the records."""

    @classmethod
    def parse(cls, line: bytes) -> Any:
        return cls.record_type.parse(line)

    @staticmethod
    def problem(manifest: AnyManifest, record: AnyRecord) -> str | None:
        """What is impossible in a record; None: nothing."""
        return None

    @abstractmethod
    def measure(self, cell: AnyCell, progress: CellProgress = no_cell_progress) -> list[AnyRecord]:
        """The records of one cell, in the order of its keys."""

    @abstractmethod
    def cost(self, cell: AnyCell) -> int:
        """How much work a cell is: what a progress bar counts."""

    @abstractmethod
    def title(self, cell: AnyCell) -> str:
        """What a progress bar shows while a cell is measured."""

    @property
    def module(self) -> nn.Module | None:
        """The measured model, which is in evaluation mode meanwhile."""
        return None

    @property
    def travels(self) -> bool:
        """Whether another process can measure the study."""
        return True

    @cached_property
    def cells(self) -> Sequence[AnyCell]:
        return self.cells_of(self.manifest)

    @cached_property
    def work(self) -> int:
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

    def measured_here(self, first: int, progress: Progress) -> Generator[Measured, None, None]:
        """Measure the cells from number `first` on in this process, and report progress inside each."""
        done = sum(map(self.cost, self.cells[:first]))
        for cell in self.cells[first:]:
            yield measure(self, cell, partial(_tell, progress, self.work, done, self.cost(cell)))
            done += self.cost(cell)

    def in_memory(self, progress: Progress = no_progress) -> Recorded[AnyManifest, AnyRecord]:
        """Measure all of it in this process, without a folder."""
        records: list[AnyRecord] = []
        done = 0
        for cell, measured in zip(self.cells, self.measured_here(0, progress), strict=True):
            records += measured.records
            done += self.cost(cell)
            progress(self.title(cell), done, self.work)
        return Recorded(manifest=self.manifest, records=records, seconds={})

    def __getstate__(self) -> dict[str, object]:
        """The fields alone: what was loaded or derived does not travel."""
        return {each.name: getattr(self, each.name) for each in fields(self)}


AnyStudy = Study[Any, Any, Any]


def _tell(progress: Progress, total: int, before: int, cost: int, doing: str, done: int) -> None:
    """Report the progress of a cell as progress of its study."""
    progress(doing, before + min(done, cost), total)


def chunks(count: int, size: int) -> list[range]:
    """The numbers below count in chunks of that size; the last may be smaller."""
    return [range(first, min(first + size, count)) for first in range(0, count, size)]


def measure(study: AnyStudy, cell: Cell, progress: CellProgress = no_cell_progress) -> Measured:
    """Measure one cell in this process."""
    start = time.perf_counter()
    with repeatable(study.module):
        records = study.measure(cell, progress)
    return Measured(records=records, seconds=time.perf_counter() - start)


AnyTargetManifest = TypeVar("AnyTargetManifest", bound=TargetManifest)


@dataclass(frozen=True, kw_only=True)
class TargetStudy(Study[AnyTargetManifest, AnyCell, AnyRecord]):
    """A study of its `target`: a classifier and images."""

    target: Target = field(default_factory=Target)
    package: ClassVar[str] = vqshield.__name__  # whose code measures
    takes_remote: ClassVar[bool] = False  # whether it measures a classifier behind HTTP

    def __post_init__(self) -> None:
        if self.target.is_remote and not self.takes_remote:
            raise InvalidInputError(
                f"classifier {self.target.name} is behind HTTP, and {type(self).__name__} needs the network "
                "itself; evaluate and ladder take it"
            )

    @property
    def specs(self) -> tuple[str, ...]:
        """The spec strings of its defenses: its field `defenses`, or `defense`."""
        settings = vars(self)
        return settings.get("defenses") or (settings["defense"],)

    def build(self, spec: str) -> Defense | None:
        """The defense of a spec string, None for "none"; refuses those that the study is not for."""
        return defense_from(spec, seed=0)

    @cached_property
    def built(self) -> Mapping[str, Defense | None]:
        """Every defense by its spec string, for checks and the manifest; samples have seeds of their own."""
        return {spec: self.build(spec) for spec in self.specs}

    @cached_property
    def manifest(self) -> AnyTargetManifest:
        """The study's own fields, and what `described` gives for the others."""
        self.target.check()
        image = self.target.images.floats(slice(1))
        for defense in filter(None, self.built.values()):
            defense.streams(image)  # refuses patches that do not fit into the images
        ids = [DefenseId.of(spec, defense, self.target) for spec, defense in self.built.items()]
        values: dict[str, Any] = {
            **self.__getstate__(),
            "data": self.target.data_id,
            "classifier": self.target.classifier_id,
            "machine": environment(self.target.place),
            "defense": ids[0],
            "defenses": tuple(ids),
            "code": CodeId.of(list(self.built.values()), self.target.place, package=self.package),
            **self.described(),
        }
        kind: type[AnyTargetManifest] = self.manifest_type
        return kind(**{each.name: values[each.name] for each in fields(kind)})

    def described(self) -> Mapping[str, object]:
        """Values of the manifest that are not fields of the study, or differ from them."""
        return {}

    @property
    def module(self) -> nn.Module:
        return self.target.model

    @property
    def travels(self) -> bool:
        return self.target.travels and not self.target.is_remote

    @cached_property
    def store(self) -> AdversarialStore:
        """The images that attacks on the bare classifier have found."""
        return AdversarialStore()


@contextmanager
def counted(title: str, progress: CellProgress, *models: nn.Module) -> Iterator[None]:
    """Report every image that one of the models classifies."""
    done = 0

    def count(_: object, __: object, logits: Tensor) -> None:
        nonlocal done
        done += len(logits)
        progress(title, done)

    with ExitStack() as hooks:
        for model in models:
            hooks.callback(model.register_forward_hook(count).remove)
        yield
