"""The executor for many processes, on this machine or on a cluster of Ray (the extra "cluster").

A task measures one cell. It receives the cell's number and the study, both small, so that no task needs
anything that a lost node had; Ray repeats lost tasks on other nodes. Every node needs vqshield and the files
that the study names. Where several cells need the same attack, the first one writes its images into a folder.
"""

import os
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

import torch

from vqshield.core import checks
from vqshield.core.entry_points import require
from vqshield.core.environment import environment
from vqshield.core.errors import InvalidInputError, VqshieldError
from vqshield.runs.executors.pool import Failure, PoolExecutor, Request, Result, answer
from vqshield.runs.manifests import TargetManifest
from vqshield.runs.study import AnyStudy

_PER_SLOT = 2  # tasks for each that can run at once: the next one waits on the node where it will run


@dataclass(frozen=True, kw_only=True)
class RayExecutor(PoolExecutor):
    """Measures in tasks of Ray.

    Attributes:
        address: of the cluster (default: the one that Ray is connected to, else this machine alone).
        retries: how often a task is repeated whose process or node was lost; errors are not repeated.
        cpus: CPUs of each task, which are also its threads.
        gpus: GPUs of each task; None: 1 where the cluster has any. Where tasks have GPUs, the device "auto"
            or "cuda" is theirs, and this process needs none.
        ahead: tasks that Ray holds at once (default: two for each that the cluster can run at once).
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

    def manifest(self, study: AnyStudy) -> Any:
        if self.gpus != 0 and study.travels and "manifest" not in vars(study):
            with self._connected() as ray:
                cluster = Cluster(ray, self)
                manifest = cluster.result(cluster.remote(_manifest).remote(study, self.cpus))
            if isinstance(manifest, Exception):
                raise manifest
            # As if this process had the tasks' device: a resumed run may read it from another node.
            machine = {**environment(), "device": manifest.machine["device"]}
            vars(study)["manifest"] = replace(manifest, machine=machine)
        return super().manifest(study)

    @contextmanager
    def pool(self, request: Request) -> Iterator["Cluster"]:
        with self._connected() as ray:
            cluster = Cluster(ray, self)
            task = cluster.remote(answer)
            cluster.task = lambda number: task.remote(request, number, self.cpus)
            yield cluster

    @contextmanager
    def _connected(self) -> Iterator[ModuleType]:
        """The package ray, connected: as it is already, and stays, or for as long as this context lasts.

        Leaving ends all tasks. It replaces ray.cancel, which sometimes crashes this process when a task
        finishes meanwhile (Ray 2.60, "Tried to complete task that was not pending").
        """
        ray = require("ray", "cluster")
        if ray.is_initialized():  # tasks that were started there end by themselves
            yield ray
            return
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # Ray would send statistics to its makers
        on_sigterm = signal.getsignal(signal.SIGTERM)
        try:
            _knock(self.address)
            ray.init(address=self.address, log_to_driver=False, logging_level="WARNING")
        except (OSError, ValueError, ray.exceptions.RayError) as error:
            raise InvalidInputError(_not_connected(self.address, error)) from error
        if callable(on_sigterm) and signal.getsignal(signal.SIGTERM) is not on_sigterm:
            signal.signal(signal.SIGTERM, on_sigterm)  # Ray's handler ends the process without a summary
        try:
            yield ray
        finally:
            ray.shutdown()


class Cluster:
    """A connected cluster, and the tasks of a run that it holds."""

    def __init__(self, ray: ModuleType, executor: RayExecutor) -> None:
        self._ray, self._executor = ray, executor
        self._running: dict[object, int] = {}  # task → number of its cell
        self.task: Callable[[int], object] = lambda _: None

    @property
    def size(self) -> int:
        return self._executor.ahead or _PER_SLOT * max(1, self._slots())

    def start(self, number: int) -> None:
        self._running[self.task(number)] = number

    def wait(self) -> dict[int, Result]:
        finished, _ = self._ray.wait(list(self._running))
        return {self._running.pop(task): self.result(task) for task in finished}

    def remote(self, function: Callable[..., object]) -> Any:
        """A function as a task; refused where it fits on no node."""
        if not self._slots():
            sizes = [f"{node.get('CPU', 0):g} CPUs and {node.get('GPU', 0):g} GPUs" for node in self._nodes]
            raise InvalidInputError(
                f"a task with cpus={self._executor.cpus}, gpus={self._gpus:g} fits on no node; they have "
                f"{', '.join(sizes) or 'nothing, as there is none'}"
            )
        # Errors are results, not failures: Ray repeats lost tasks only.
        options = {"max_retries": self._executor.retries, "retry_exceptions": False}
        return self._ray.remote(num_cpus=self._executor.cpus, num_gpus=self._gpus, **options)(function)

    def result(self, task: object) -> Any:
        """What a task has returned, or an exception."""
        exceptions = self._ray.exceptions
        try:
            result = self._ray.get(task)
        except exceptions.RayTaskError as error:  # a mistake in the program, with its traceback
            return error
        except exceptions.RayError as error:
            lost = VqshieldError(
                f"a task was lost for good, retries={self._executor.retries}, by {type(error).__name__}: "
                f"{error}; finished cells are kept: run it again to continue, with more retries where nodes "
                "come and go"
            )
            lost.__cause__ = error
            return lost
        return result.error() if isinstance(result, Failure) else result

    def _slots(self) -> int:
        """How many tasks the cluster can run at once now."""
        of_task = {"CPU": self._executor.cpus, "GPU": self._gpus}
        needed = {kind: count for kind, count in of_task.items() if count}
        return sum(int(min(node.get(kind, 0) / needed[kind] for kind in needed)) for node in self._nodes)

    @property
    def _nodes(self) -> list[dict[str, float]]:
        """What each node has."""
        return [node["Resources"] for node in self._ray.nodes() if node["Alive"]]

    @property
    def _gpus(self) -> float:
        """GPUs of each task."""
        if self._executor.gpus is None:
            return float(any(node.get("GPU") for node in self._nodes))
        return self._executor.gpus


def _manifest(study: AnyStudy, threads: int) -> TargetManifest | Failure:
    """The manifest of a study in a worker."""
    torch.set_num_threads(threads)
    try:
        manifest: TargetManifest = study.manifest
    except VqshieldError as error:
        return Failure(type(error), (str(error),))
    return manifest


def _knock(address: str | None) -> None:
    """Raise OSError where no program listens: Ray itself would wait for minutes."""
    host, _, port = (address or "").rpartition("://")[2].rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host, int(port)), timeout=10).close()


def _not_connected(address: str | None, error: Exception) -> str:
    """Why, in Ray's own words: those about a refused token are the last line of the cause."""
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
