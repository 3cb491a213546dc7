"""The executor for several processes of this machine, without any other package.

Most attacks leave a GPU waiting for its next command, and most cells keep one CPU core busy: several
processes measure several cells at a time. Each process needs memory for a classifier of its own.
Processes are spawned, not forked: a process that has used a GPU cannot be forked.
"""

import multiprocessing
import os
import signal
import threading
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import connection

import torch

from vqshield.core import checks
from vqshield.core.errors import VqshieldError
from vqshield.runs.executors.pool import Failure, PoolExecutor, Request, Result, answer
from vqshield.runs.study import Measured

_SPAWN = multiprocessing.get_context("spawn")
_PATIENCE = 10  # seconds for a process that has closed its pipe to end by itself
_NOTICED = 0.5  # seconds within which Ctrl-C is noticed


@dataclass(frozen=True, kw_only=True)
class ProcessesExecutor(PoolExecutor):
    """Measures in processes of its own, which end when the run does.

    Attributes:
        workers: how many processes (default: one for every `cpus` CPUs of this machine).
        cpus: how many threads each computes with.
        retries: how often a cell is repeated whose process was killed, for example because the system ran out
            of memory; errors, including a full GPU, are not repeated.
    """

    workers: int | None = None
    cpus: int = 1
    retries: int = 3

    def __post_init__(self) -> None:
        if self.workers is not None:
            checks.whole("workers", self.workers, least=1)
        checks.whole("cpus", self.cpus, least=1)
        checks.whole("retries", self.retries, least=0)

    @contextmanager
    def pool(self, request: Request) -> Iterator["Team"]:
        size = self.workers or max(1, _cpus() // self.cpus)
        team = Team(request, size=size, threads=self.cpus, retries=self.retries)
        try:
            yield team
        finally:
            team.end()


class Worker:
    """A process, and the number of the cell that it measures (None: it is idle)."""

    def __init__(self, threads: int) -> None:
        self.pipe, self._theirs = _SPAWN.Pipe()
        self.process = _SPAWN.Process(target=_serve, args=(self._theirs, threads), daemon=True)
        self.number: int | None = None

    def start(self) -> None:
        """Start the process. Only it holds its end of the pipe, so that this end notices when it is gone."""
        with _interrupts_held_back():
            self.process.start()
            self._theirs.close()

    def kill(self) -> None:
        if self.process.pid is not None:
            self.process.kill()

    def release(self) -> None:
        """Wait for the end of the process, and close its pipe."""
        if self.process.pid is not None:
            self.process.join()
        self.pipe.close()
        self.process.close()


class Team:
    """At most `size` workers, each with a pipe, started when there is a cell for one more."""

    def __init__(self, request: Request, *, size: int, threads: int, retries: int) -> None:
        self.size = size
        self._request, self._threads, self._retries = request, threads, retries
        self._workers: list[Worker] = []
        self._losses = Counter[int]()
        self._any_started = False  # whether any process came as far as its first message

    def start(self, number: int) -> None:
        """Let an idle worker measure a cell, or else a new worker."""
        worker = next((worker for worker in self._workers if worker.number is None), None)
        if worker is None:
            worker = Worker(self._threads)
            self._workers.append(worker)  # before it is started, so that it is ended whatever happens
            worker.start()
        worker.number = number
        with suppress(OSError):  # the process is gone: `wait` finds out as well
            worker.pipe.send((self._request, number))

    def wait(self) -> dict[int, Result]:
        """Wait for messages of workers; the results of cells by their numbers."""
        ready: list[object] = []
        while not ready:  # Ctrl-C in the very moment before a wait is not noticed until the wait ends
            ready = list(connection.wait([worker.pipe for worker in self._workers], timeout=_NOTICED))
        results: dict[int, Result] = {}
        for worker in [worker for worker in self._workers if worker.pipe in ready]:
            number = worker.number
            try:
                message: Measured | Failure | None = worker.pipe.recv()
            except (EOFError, OSError):
                result: Result = self._lost(worker)
            else:
                self._any_started = True
                if message is None:  # the first one, which only says that the process has started
                    continue
                result = message.error() if isinstance(message, Failure) else message
                worker.number = None
            if number is not None:  # an idle worker may be lost as well
                results[number] = result
        return results

    def end(self) -> None:
        """End all processes at once."""
        for worker in self._workers:
            worker.kill()
        for worker in self._workers:
            worker.release()

    def _lost(self, worker: Worker) -> Exception | None:
        """Forget a worker whose process is gone; the error that ends the run, or None: repeat its cell."""
        worker.process.join(_PATIENCE)
        worker.kill()
        worker.process.join()
        code = worker.process.exitcode or 0
        self._workers.remove(worker)
        worker.release()
        how = f"signal {_signal_name(-code)}" if code < 0 else f"exit code {code}"
        if code > 0 and not self._any_started:
            return VqshieldError(
                f"a worker ended by {how} before it started, and printed why on stderr; a script that uses "
                "the executor processes has to do so below if __name__ == '__main__':"
            )
        if worker.number is None:
            return None
        self._losses[worker.number] += 1
        losses = self._losses[worker.number]
        if losses <= self._retries:
            return None
        title = self._request.study.title(self._request.study.cells[worker.number])
        return VqshieldError(
            f"a worker was lost for good: {title} was started {losses} times, retries={self._retries}, and "
            f"each time its process ended, the last one by {how}; finished cells are kept: run it again to "
            "continue, with fewer workers where they have too little memory"
        )


def _serve(pipe: connection.Connection, threads: int) -> None:
    """What a worker does until the process that started it is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that started it, which ends it
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with suppress(EOFError, OSError):
        pipe.send(None)
        while True:
            request, number = pipe.recv()
            pipe.send(_answer(request, number, threads))


def _answer(request: Request, number: int, threads: int) -> Measured | Failure:
    """Measure a cell; every error is returned, so that only what kills the process loses its cell."""
    try:
        return answer(request, number, threads)
    except torch.OutOfMemoryError as error:
        message = f"the GPU has too little memory for this many workers: {error}; finished cells are kept: "
        return Failure(VqshieldError, (message + "run it again with fewer workers to continue",))
    except Exception as error:
        note = f"\nIn a worker process:\n{traceback.format_exc()}"
        if isinstance(error, OSError) and error.errno is not None:
            name = None if error.filename is None else str(error.filename)
            return Failure(OSError, (error.errno, str(error.strerror), name), note)
        return Failure(RuntimeError, (f"{type(error).__name__}: {error}",), note)


def _end_with_parent() -> None:
    """End this process when its parent is killed, even within a long cell."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


@contextmanager
def _interrupts_held_back() -> Iterator[None]:
    """Start processes that never receive Ctrl-C; this process receives it afterwards.

    Otherwise they would print a traceback for Ctrl-C until they ignore it.
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
    except ValueError:  # a real-time signal
        return str(number)


def _cpus() -> int:
    """How many CPUs this process may use, where the system reports it."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
