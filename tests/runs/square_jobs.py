"""A work that is no more than the protocol asks for, for any process to make; and traps on its way."""

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from vqshield.errors import InvalidInputError
from vqshield.runs.executors import Executor
from vqshield.runs.records import Key, Line, RecordFolder
from vqshield.runs.study import Report

MACHINE = {"vqshield": "1", "torch": "2", "device": "cpu"}


@dataclass(frozen=True, kw_only=True)
class Square(Line):
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


class Squares:
    """A square a cell."""

    def __init__(self, folder: Path, *, count: int = 4) -> None:
        self.specification: dict[str, Any] = {"count": count, "machine": {**MACHINE, "threads": 5}}
        self.cells = [Number(image) for image in range(count)]
        self.records = RecordFolder(folder, [cell.keys for cell in self.cells], Square.parse)

    def measure(self, cell: Number) -> list[Square]:
        return [Square(defense="a", image=cell.image, value=cell.image**2)]

    def cost(self, cell: Number) -> int:
        return 10

    def title(self, cell: Number) -> str:
        return f"number {cell.image}"


class Parities(Squares):
    """Those of even numbers need the same, and those of odd ones; 0 needs nothing."""

    def common(self, cell: Number) -> str | None:
        return ("even", "odd")[cell.image % 2] if cell.image else None


def no_trap(number: int) -> None:
    pass


@dataclass(frozen=True)
class SquaresRecipe:
    """Squares, with a trap before each that knows its number; `log` says which were begun, and by whom."""

    log: Path
    trap: Callable[[int], None] = no_trap
    count: int = 4
    kind: type[Squares] = Squares

    def rebuild(self, folder: Path) -> Squares:
        work = self.kind(folder, count=self.count)
        original = work.measure

        def measure(cell: Number) -> list[Square]:
            with self.log.open("a") as file:
                file.write(f"{cell.image} {os.getpid()}\n")
            self.trap(cell.image)
            return original(cell)

        work.measure = measure  # type: ignore[method-assign]
        return work

    def run(self, folder: Path, executor: Executor, report: Report = lambda *_: None) -> list[int]:
        """The values that are then on the disk."""
        work = SquaresRecipe.rebuild(self, folder)  # whatever others are given
        executor.run(work, report=report, recipe=self)
        return [record.value for record in work.records.read()]

    def begun(self) -> list[int]:
        return [int(line.split()[0]) for line in self.log.read_text().splitlines()]


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
    """The number 0 goes on when the number 3 is begun: two have to be measured at once."""

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
