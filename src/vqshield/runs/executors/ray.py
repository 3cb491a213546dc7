"""The executor for many processes, here or on a cluster of Ray (the extra "cluster").

A task is one cell. It is given its number and the study, both small, so that no task needs anything a lost
node had; Ray runs those that were lost again elsewhere. Every node needs vqshield and whatever files the
study names. Where several cells need the same attack, the first makes it, and leaves it in a folder for all.
"""

import math
import os
import signal
import socket
from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any

import torch

from vqshield.core import checks
from vqshield.core.environment import environment
from vqshield.core.errors import InvalidInputError, MissingExtraError, VqshieldError
from vqshield.runs.executors.base import HELD, Executor, Measured, finders
from vqshield.runs.executors.workers import Refusal, Request, answer, manifest_for, request_for
from vqshield.runs.records import AnyRecord
from vqshield.runs.study import AnyCell, Progress, Study

_PER_SLOT = 2  # tasks for each that can run at once: the next one waits where it will run


@dataclass(frozen=True, kw_only=True)
class RayExecutor(Executor):
    """Measures in tasks of Ray; without an address, on this machine alone or where Ray is connected already.

    retries: how often a task is begun again after its process or node was lost; errors are not tried again.
    cpus, gpus: of each task; cpus is also how many threads it computes with. gpus None: 1 where the cluster
        has any. Where tasks have GPUs, device "auto" or "cuda" is theirs, and this process needs none.
    ahead: tasks that Ray has to run at once, not counting those that wait for what another finds; without it,
        two for each that the cluster can run at the same time.
    """

    address: str | None = None
    retries: int = 3
    cpus: int = 1
    gpus: float | None = 0
    ahead: int | None = None

    def __post_init__(self) -> None:
        checks.whole("retries", self.retries, least=0)
        checks.whole("cpus", self.cpus, least=1)
        if self.gpus is not None:
            checks.real("gpus", self.gpus)
        if self.ahead is not None:
            checks.whole("ahead", self.ahead, least=1)

    def manifest(self, study: Study[Any, Any, Any]) -> Any:
        if self.gpus != 0 and study.travels and "manifest" not in vars(study):
            ray = _package()
            with self._connected(ray):
                found = self._answer(ray, self._remote(ray, _manifest).remote(study, self.cpus))
            # As if this process had the tasks' device: a resumed run may ask another node.
            machine = {**environment(), "device": found.machine["device"]}
            vars(study)["manifest"] = replace(found, machine=machine)
        return manifest_for(study, self.cpus)

    def measured(
        self, study: Study[Any, AnyCell, AnyRecord], first: int, progress: Progress
    ) -> Generator[Measured[AnyRecord], None, None]:
        """Cells finish in any order and are given back in theirs."""
        request = request_for(study)
        ray = _package()
        with self._connected(ray):
            task = self._remote(ray, _task)
            finder = finders(study, first)

            def begin(number: int, after: Any) -> Any:
                return task.remote(request, number, self.cpus, after)

            for finished in self._in_order(ray, range(first, len(study.cells)), finder, begin):
                yield self._answer(ray, finished)

    def _remote(self, ray: Any, function: Callable[..., Any]) -> Any:
        """A function as a task; refused where it fits on no node."""
        self._slots(ray, least=1)
        # Errors are answers, not failures: Ray begins again only what was lost.
        options = {"num_gpus": self._gpus(ray), "max_retries": self.retries, "retry_exceptions": False}
        return ray.remote(num_cpus=self.cpus, **options)(function)

    def _in_order(
        self, ray: Any, numbers: range, finder: dict[int, int], begin: Callable[[int, Any], Any]
    ) -> Iterator[Any]:
        """The tasks of these cells, each once it and all before it are finished.

        Cells are of all lengths: while a long one runs, those behind it go on, and what they found is held.
        """
        waiting, begun, running = deque(numbers), dict[int, Any](), dict[int, Any]()
        for number in numbers:
            while number not in begun or number in running:
                room = self.ahead or _PER_SLOT * self._slots(ray)
                while waiting and len(begun) < HELD * room and self._able(running, finder) < room:
                    each = waiting.popleft()
                    # Ray begins a task when its arguments are there: here when the finder has found.
                    after = running.get(finder[each]) if each in finder else None
                    begun[each] = running[each] = begin(each, after)
                finished, _ = ray.wait(list(running.values()))
                running = {each: task for each, task in running.items() if task not in finished}
            yield begun.pop(number)

    def _able(self, running: dict[int, Any], finder: dict[int, int]) -> int:
        """How many of them wait for no other one."""
        return sum(finder.get(each) not in running for each in running)

    def _answer(self, ray: Any, begun: Any) -> Any:
        try:
            found = ray.get(begun)
        except ray.exceptions.RayTaskError:  # a mistake in the program: its traceback is what one needs
            raise
        except ray.exceptions.RayError as error:
            raise VqshieldError(
                f"a task was lost for good, retries={self.retries}, by {type(error).__name__}: {error}; what "
                "is finished is kept: run it again to go on, with more retries where nodes come and go"
            ) from error
        if isinstance(found, Refusal):
            raise found.error()
        return found

    @contextmanager
    def _connected(self, ray: Any) -> Iterator[None]:
        """To the cluster that is connected already, which stays so, or to one for as long as this runs.

        Leaving ends all tasks. It takes the place of ray.cancel, which now and then brings this process down
        when a task is finishing meanwhile (Ray 2.60, "Tried to complete task that was not pending").
        """
        if ray.is_initialized():  # what was begun there ends by itself, and nobody waits for it
            yield
            return
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # Ray would tell its makers
        on_sigterm = signal.getsignal(signal.SIGTERM)
        try:
            _knock(self.address)
            ray.init(address=self.address, log_to_driver=False, logging_level="WARNING")
        except (OSError, ValueError, ray.exceptions.RayError) as error:
            raise InvalidInputError(_not_connected(self.address, error)) from error
        if callable(on_sigterm) and signal.getsignal(signal.SIGTERM) is not on_sigterm:
            signal.signal(signal.SIGTERM, on_sigterm)  # Ray's own leaves without summing up
        try:
            yield
        finally:
            ray.shutdown()

    def _slots(self, ray: Any, *, least: int = 0) -> int:
        """How many tasks the cluster can run at once; nodes come and go."""
        nodes, gpus = _nodes(ray), self._gpus(ray)
        found = sum(self._fitting(node, gpus) for node in nodes)
        if found < least:
            sizes = [f"{node.get('CPU', 0):g} CPUs and {node.get('GPU', 0):g} GPUs" for node in nodes]
            raise InvalidInputError(
                f"a task with cpus={self.cpus}, gpus={gpus:g} fits on no node; they have "
                f"{', '.join(sizes) or 'nothing, as there is none'}"
            )
        return max(1, found)

    def _fitting(self, node: dict[str, float], gpus: float) -> int:
        found = node.get("CPU", 0) / self.cpus
        if gpus:
            found = min(found, node.get("GPU", 0) / gpus)
        return math.floor(found)

    def _gpus(self, ray: Any) -> float:
        """Of each task."""
        if self.gpus is None:
            return float(any(node.get("GPU") for node in _nodes(ray)))
        return self.gpus


def _nodes(ray: Any) -> list[dict[str, float]]:
    """What each node has."""
    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


def _task(request: Request, number: int, threads: int, _: object) -> Measured[Any] | Refusal:
    """What runs in a worker; the last argument is only waited for."""
    return answer(request, number, threads)


def _manifest(study: Study[Any, Any, Any], threads: int) -> Any:
    """What runs in a worker that is asked what a study comes to there."""
    torch.set_num_threads(threads)
    try:
        return study.manifest
    except VqshieldError as error:
        return Refusal(kind=type(error), message=str(error))


def _knock(address: str | None) -> None:
    """OSError where nobody listens: Ray itself would wait for minutes."""
    host, _, port = (address or "").rpartition("://")[2].rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host, int(port)), timeout=10).close()


def _not_connected(address: str | None, error: Exception) -> str:
    """Why, in Ray's own words: those of a refused token are the last line of the cause."""
    reason = str(error.__cause__ or error).strip().rpartition("\n")[2]
    if "AuthenticationError" in f"{type(error).__name__}: {reason}":
        return (
            f"the cluster of Ray at address={address!r} refuses this process: {reason}; set "
            "RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN to the cluster's token"
        )
    return (
        f"no cluster of Ray answers at address={address!r}: {reason}; give the address that ray start --head "
        "shows, or none for this machine alone"
    )


def _package() -> Any:
    try:
        return import_module("ray")
    except ModuleNotFoundError as error:
        raise MissingExtraError("ray", "cluster") from error
