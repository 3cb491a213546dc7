"""Team: worker processes of this machine, each with a pipe, started when there is a cell for one more.

They are spawned, not forked: a process that has used a GPU cannot be forked.
"""

import multiprocessing
import os
import signal
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from types import TracebackType
from typing import Any, Self

import torch

from vqshield.core.errors import VqshieldError
from vqshield.runs.executors.base import Measured
from vqshield.runs.executors.workers import Refusal, Request, answer

_SPAWN = multiprocessing.get_context("spawn")
_PATIENCE = 10  # seconds for a process that has closed its pipe to end by itself
_NOTICED = 0.5  # seconds within which Ctrl-C is noticed


@dataclass(frozen=True, kw_only=True)
class Lost:
    """The answer of a process that is no more; hopeless: no process ever began, and so would not the next."""

    how: str
    hopeless: bool


@dataclass(frozen=True, kw_only=True)
class Mistake:
    """Any other error on its way to the process that asked; one of a system call keeps its number."""

    message: str
    note: str
    number: int | None = None
    filename: str | None = None

    def error(self) -> Exception:
        """The error, with the worker's traceback as a note."""
        if self.number is None:
            found: Exception = RuntimeError(self.message)
        else:
            found = OSError(self.number, self.message, self.filename)
        found.add_note(self.note)
        return found


Answer = Measured[Any] | Refusal | Mistake | Lost


class Worker:
    """One process, and the number of the cell that it measures."""

    def __init__(self, threads: int) -> None:
        self.pipe, self._theirs = _SPAWN.Pipe()
        self._process = _SPAWN.Process(target=_serve, args=(self._theirs, threads), daemon=True)
        self.number: int | None = None

    def start(self) -> None:
        """Start it; its end of the pipe is then its own, so that this end tells when it is gone."""
        with _interrupts_held_back():
            self._process.start()
            self._theirs.close()

    def begin(self, request: Request, number: int) -> None:
        """Have it measure a cell."""
        self.number = number
        with suppress(OSError):  # it is gone: the pipe says so again when it is listened to
            self.pipe.send((request, number))

    def receive(self) -> Answer | None:
        """What it has to say; None: only that it is there."""
        try:
            found: Answer | None = self.pipe.recv()
        except (EOFError, OSError):
            return self._lost()
        return found

    def kill(self) -> None:
        """End it now, whatever it does."""
        if self._process.pid is not None:
            self._process.kill()

    def release(self) -> None:
        """Wait for its end, and forget it."""
        if self._process.pid is not None:
            self._process.join()
        self.pipe.close()
        self._process.close()

    def _lost(self) -> Lost:
        self._process.join(_PATIENCE)
        self.kill()
        self._process.join()
        code = self._process.exitcode or 0
        how = f"signal {_signal_name(-code)}" if code < 0 else f"exit code {code}"
        return Lost(how=how, hopeless=code > 0)


class Team:
    """At most `size` workers for one piece of work; leaving the context ends them at once."""

    def __init__(self, request: Request, *, size: int, threads: int) -> None:
        self._request, self._size, self._threads = request, size, threads
        self._workers: list[Worker] = []
        self._began = False  # whether any of them came as far as saying so

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for worker in self._workers:
            worker.kill()
        for worker in self._workers:
            worker.release()

    @property
    def has_room(self) -> bool:
        """Whether a cell that is begun now is measured now."""
        return len(self._workers) < self._size or any(each.number is None for each in self._workers)

    def begin(self, number: int) -> None:
        """Have somebody who is idle measure a cell, or else somebody new."""
        worker = next((each for each in self._workers if each.number is None), None)
        if worker is None:
            worker = Worker(self._threads)
            self._workers.append(worker)  # before it is started, so that it is ended whatever happens
            worker.start()
        worker.begin(self._request, number)

    def answers(self) -> dict[int, Answer]:
        """Wait until somebody has something to say: numbers of cells, and what became of them."""
        found: dict[int, Answer] = {}
        speaking: list[Any] = []
        while not speaking:  # Ctrl-C in the very moment before a wait is not noticed until it ends
            speaking = wait([each.pipe for each in self._workers], timeout=_NOTICED)
        for worker in [each for each in self._workers if each.pipe in speaking]:
            said = worker.receive()
            if isinstance(said, Lost):
                self._workers.remove(worker)
                worker.release()
                said = replace(said, hopeless=said.hopeless and not self._began)
            else:
                self._began = True
            if said is not None and worker.number is not None:  # an idle one may be lost, too
                found[worker.number] = said
                worker.number = None
        return found


def _serve(pipe: Connection, threads: int) -> None:
    """What a worker does until nobody is there who asks."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that asks, which ends this one
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with suppress(EOFError, OSError):
        pipe.send(None)
        while True:
            request, number = pipe.recv()
            pipe.send(_answer(request, number, threads))


def _answer(request: Request, number: int, threads: int) -> Answer:
    """Whatever happens is an answer: what kills this process is all that is lost."""
    try:
        return answer(request, number, threads)
    except torch.OutOfMemoryError as error:
        return Refusal(
            kind=VqshieldError,
            message=f"the GPU has too little memory for this many workers: {error}; what is finished is "
            "kept: run it again with fewer of them to continue",
        )
    except Exception as error:
        note = f"\nIn a worker process:\n{traceback.format_exc()}"
        if isinstance(error, OSError) and error.errno is not None:
            name = None if error.filename is None else str(error.filename)
            return Mistake(message=str(error.strerror), note=note, number=error.errno, filename=name)
        return Mistake(message=f"{type(error).__name__}: {error}", note=note)


def _end_with_parent() -> None:
    """A long cell should not go on for somebody who was killed."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


@contextmanager
def _interrupts_held_back() -> Iterator[None]:
    """A process that is started meanwhile never hears Ctrl-C, this one does afterwards.

    It would otherwise answer Ctrl-C with a traceback until it comes to ignoring it.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    from multiprocessing import resource_tracker

    resource_tracker.ensure_running()  # starting a process would do it, and let interrupts through again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # one of the real-time ones
        return str(number)
