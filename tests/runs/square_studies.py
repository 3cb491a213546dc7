"""A study that measures nothing but squares, for any process; and traps on its way."""

import multiprocessing
import os
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch

from vqshield.core.errors import InvalidInputError
from vqshield.core.serialization import Json
from vqshield.runs.executors import Executor
from vqshield.runs.records import Key, Record
from vqshield.runs.study import CellProgress, Progress, Study, no_cell_progress, no_progress

MACHINE = {"vqshield": "1", "torch": "2", "device": "cpu"}
THREADS = 5


@dataclass(frozen=True, kw_only=True)
class Square(Record):
    image: int
    value: int

    @property
    def key(self) -> Key:
        return self.defense, "square", self.image


@dataclass(frozen=True)
class Number:
    image: int

    @property
    def keys(self) -> list[Key]:
        return [("a", "square", self.image)]


@dataclass(frozen=True, kw_only=True)
class SquaresManifest:
    count: int
    machine: Mapping[str, Json]


def no_trap(number: int) -> None:
    pass


@dataclass(frozen=True, kw_only=True)
class Squares(Study[SquaresManifest, Number, Square]):
    """A square a cell, with a trap before each that knows its number; `log` says which were begun."""

    count: int = 4
    log: Path | None = None
    trap: Callable[[int], None] = no_trap

    manifest_type = SquaresManifest
    record_type = Square

    @cached_property
    def manifest(self) -> SquaresManifest:
        return SquaresManifest(count=self.count, machine={**MACHINE, "threads": THREADS})

    @staticmethod
    def cells_of(manifest: SquaresManifest) -> list[Number]:
        return [Number(image) for image in range(manifest.count)]

    def measure(self, cell: Number, progress: CellProgress = no_cell_progress) -> list[Square]:
        if self.log is not None:
            with self.log.open("a") as file:
                file.write(f"{cell.image}\n")
        self.trap(cell.image)
        return [Square(defense="a", image=cell.image, value=cell.image**2)]

    def cost(self, cell: Number) -> int:
        return 10

    def title(self, cell: Number) -> str:
        return f"number {cell.image}"

    def run(self, folder: Path, executor: Executor, progress: Progress = no_progress) -> list[int]:
        """The values that are then on the disk."""
        executor.run(self, folder, progress=progress)
        return self.values(folder)

    @classmethod
    def values(cls, folder: Path) -> list[int]:
        return [record.value for record in cls.read(folder).records]

    def begun(self) -> list[int]:
        return (
            []
            if self.log is None or not self.log.exists()
            else [int(n) for n in self.log.read_text().split()]
        )


@dataclass(frozen=True, kw_only=True)
class LongerElsewhere(Squares):
    """Comes to one square more in any other process."""

    @cached_property
    def manifest(self) -> SquaresManifest:
        more = multiprocessing.parent_process() is not None
        return SquaresManifest(count=self.count + more, machine={**MACHINE, "threads": THREADS})


@dataclass(frozen=True)
class Raising:
    """At the number 2."""

    error: Callable[[], Exception]

    def __call__(self, number: int) -> None:
        if number == 2:
            raise self.error()


class StubbornError(Exception):
    """Cannot be made from what pickle keeps of it."""

    def __init__(self, one: int, other: int) -> None:
        super().__init__(f"{one} and {other}")


def mistake() -> Exception:
    return ZeroDivisionError("a mistake of the program")


def refusal() -> Exception:
    return InvalidInputError("colour=3 should be blue")


def stubborn() -> Exception:
    return StubbornError(1, 2)


def full_disk() -> Exception:
    return OSError(28, "No space left on device")


def no_file() -> Exception:
    return FileNotFoundError(2, "No such file or directory", "weights")


def full_gpu() -> Exception:
    return torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")


@dataclass(frozen=True)
class Death:
    """Of the worker at the number 2: whenever it comes to it, or only while there is no file `marker`."""

    marker: Path | None = None
    code: int | None = None

    def __call__(self, number: int) -> None:
        if number != 2 or (self.marker is not None and self.marker.exists()):
            return
        if self.marker is not None:
            self.marker.touch()
        if self.code is not None:
            os._exit(self.code)
        os.kill(os.getpid(), signal.SIGKILL)


@dataclass(frozen=True)
class Meeting:
    """The number 0 continues when the number 3 is begun: two have to be measured at once."""

    pipe: Path

    def __call__(self, number: int) -> None:
        if number == 3:
            self.pipe.write_text("here")
        if number == 0:
            self.pipe.read_text()


@dataclass(frozen=True)
class Hanging:
    """The numbers from 1 on never end; who reads `alive` meets its end when their processes are no more."""

    alive: Path
    never: Path

    def __call__(self, number: int) -> None:
        if number:
            with self.alive.open("w") as file:  # open for as long as the worker lives
                file.write("!")
                file.flush()
                self.never.read_text()
