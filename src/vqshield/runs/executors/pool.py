"""What executors with several processes share: the loop over cells, and what a worker receives and returns.

A worker receives a study and the number of a cell, both small. It loads what the study names, and checks that
it is what the run started with.
"""

import json
from abc import abstractmethod
from bisect import insort
from collections.abc import Generator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Protocol

import torch

from vqshield.core.errors import InvalidInputError, VqshieldError
from vqshield.core.serialization import to_plain
from vqshield.runs.executors import Executor
from vqshield.runs.study import AnyStudy, Measured, Progress, measure

AHEAD = 16
"""Cells in flight per worker: one long cell does not stop all others, and results do not fill the memory."""
_ALIKE = ("vqshield", "torch", "device")  # must not differ between machines that share records
Result = Measured | Exception | None
"""What came of a cell; None: its process was lost, and the cell is measured again."""


class Pool(Protocol):
    """Processes that measure cells: `size` at once. `wait` returns when something has happened."""

    @property
    def size(self) -> int: ...
    def start(self, number: int) -> None: ...
    def wait(self) -> Mapping[int, Result]: ...


class PoolExecutor(Executor):
    """Measures several cells at once in other processes, each with `cpus` threads."""

    cpus: int

    @abstractmethod
    def pool(self, request: "Request") -> AbstractContextManager[Pool]:
        """The processes for a study; leaving the context ends them at once."""

    def manifest(self, study: AnyStudy) -> Any:
        """The study's manifest with the threads of the workers.

        Raises:
            InvalidInputError: other processes cannot load the study; nothing has been written yet.
        """
        if not study.travels:
            raise InvalidInputError(
                f"{type(study).__name__} has a classifier in memory, which other processes cannot load; give "
                "it as a file or as module:function, or use the executor local"
            )
        return replace(study.manifest, machine={**study.manifest.machine, "threads": self.cpus})

    def measured(self, study: AnyStudy, first: int, progress: Progress) -> Generator[Measured, None, None]:
        numbers = range(first, len(study.cells))
        queue = CellQueue(numbers)
        results: dict[int, Measured | Exception] = {}
        with self.pool(Request(study=study, identity=_identity(study))) as pool:
            for number in numbers:
                while True:
                    while (upcoming := queue.take(pool.size)) is not None:
                        pool.start(upcoming)
                    if number in results:
                        break
                    for ended, result in pool.wait().items():
                        queue.end(ended, result)
                        if result is not None:
                            results[ended] = result
                measured = results.pop(number)
                if isinstance(measured, Exception):  # raised in its turn: the cells before it are kept
                    raise measured
                queue.give(number)
                yield measured


class CellQueue:
    """Which cell starts next: the first one that waits, unless it is too far ahead.

    ahead: how far ahead of the first unreturned cell others may start, per cell that runs.
    """

    def __init__(self, numbers: range, *, ahead: int = AHEAD) -> None:
        self._waiting, self._running, self._ahead = list(numbers), 0, ahead
        self._first, self._stop = numbers.start, numbers.stop

    def take(self, size: int) -> int | None:
        """The next cell, where up to `size` may run at once; None: none can start now."""
        end = min(self._stop, self._first + self._ahead * size)
        if self._running >= size or not self._waiting or self._waiting[0] >= end:
            return None
        self._running += 1
        return self._waiting.pop(0)

    def end(self, number: int, result: Result) -> None:
        """A cell has ended: lost cells wait again, and no cell after an error is started."""
        self._running -= 1
        if result is None:
            insort(self._waiting, number)
        elif isinstance(result, Exception):
            self._stop = min(self._stop, number)

    def give(self, number: int) -> None:
        """The cell and all before it have been returned: as many more may start."""
        self._first = number + 1


@dataclass(frozen=True, kw_only=True)
class Request:
    """What a worker measures; identity: the manifest that the study must have there, as JSON."""

    study: AnyStudy
    identity: str


@dataclass(frozen=True)
class Failure:
    """An error on its way from a worker: the same error here, with the worker's traceback as a note."""

    kind: type[Exception]
    arguments: tuple[object, ...]
    note: str | None = None

    def error(self) -> Exception:
        """The error, made without its constructor, which may take other arguments than the message."""
        error = self.kind.__new__(self.kind, *self.arguments)
        if self.note is not None:
            error.add_note(self.note)
        return error


def answer(request: Request, number: int, threads: int) -> Measured | Failure:
    """Measure a cell in a worker."""
    torch.set_num_threads(threads)
    try:
        study = checked(request)
        return measure(study, study.cells[number])
    except VqshieldError as error:
        return Failure(type(error), (str(error),))


@lru_cache(maxsize=1)
def checked(request: Request) -> AnyStudy:
    """The study, loaded and checked once per worker."""
    expected = json.loads(request.identity)
    for name, here in json.loads(_identity(request.study)).items():
        if here != expected[name]:
            raise InvalidInputError(
                f"a worker found {name}={here!r} where the run started with {name}={expected[name]!r}; "
                "give every node the same files and versions, and devices of one kind"
            )
    return request.study


def _identity(study: AnyStudy) -> str:
    """What must be the same everywhere, so that the records are those of the manifest."""
    plain = to_plain(study.manifest)
    return json.dumps({**plain, "machine": {name: plain["machine"][name] for name in _ALIKE}})
