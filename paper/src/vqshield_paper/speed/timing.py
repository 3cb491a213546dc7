"""How a call is timed: warmed up, repeated for a while, with a number of threads, under what other load."""

import os
import re
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TypeVar

import torch

BUSY = 0.1  # a row is marked where other programs used more than this share of the processor
_STAT = Path("/proc/stat")

Result = TypeVar("Result")


@dataclass(frozen=True)
class Timing:
    """Seconds of every repetition."""

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        """What is reported."""
        return statistics.median(self.seconds)

    @property
    def best(self) -> float:
        """The fastest: what the machine can do when nothing disturbs it."""
        return min(self.seconds)


def measure(
    call: Callable[[], Result],
    *,
    device: torch.device,
    budget: float,
    warmups: int = 1,
    least: int = 3,
) -> tuple[Result, Timing]:
    """The call's result and its times: at least `least` of them, until they add up to `budget` seconds."""
    for _ in range(warmups):  # caches fill, libraries start their threads, compilers compile
        result = call()
    seconds: list[float] = []
    while len(seconds) < least or sum(seconds) < budget:
        _wait(device)
        began = time.perf_counter()
        result = call()
        _wait(device)
        seconds.append(time.perf_counter() - began)
    return result, Timing(tuple(seconds))


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@contextmanager
def limited_threads(count: int) -> Iterator[None]:
    """`count` threads for torch, and for every OpenMP and BLAS library that is loaded by now."""
    before = torch.get_num_threads()
    with ExitStack() as stack:
        if find_spec("threadpoolctl") is not None:
            stack.enter_context(import_module("threadpoolctl").threadpool_limits(count))
        torch.set_num_threads(count)
        try:
            yield
        finally:
            torch.set_num_threads(before)


class LoadWatch:
    """Which share of all cores other programs have used since it was created.

    Threads that wait for each other suffer badly from a core that is taken away.
    """

    def __init__(self) -> None:
        self._began = time.perf_counter()
        self._all, self._own = _all_seconds(), _own_seconds()

    def others(self) -> float | None:
        """The share until now; None where the system does not tell."""
        everything = _all_seconds()
        if everything is None or self._all is None:
            return None
        passed = (time.perf_counter() - self._began) * (os.cpu_count() or 1)
        return max(0.0, (everything - self._all) - (_own_seconds() - self._own)) / passed


def _all_seconds() -> float | None:
    """Processor seconds that all programs have used, and what the machine's host has taken away."""
    if not _STAT.is_file():
        return None
    user, nice, system, _, _, irq, softirq, steal = map(int, _STAT.read_text().split()[1:9])
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def _own_seconds() -> float:
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system


def reason(error: BaseException) -> str:
    """What went wrong as one short line, without the paths of this machine."""
    text = next(iter(str(error).splitlines()), "")
    return f"{type(error).__name__}: {without_paths(text)}"[:200]


def without_paths(text: str) -> str:
    """The text with file names instead of whole paths: a record must not say where it was made."""
    return re.sub(r"(/[^/\s'\"]+)+/", "", text)
