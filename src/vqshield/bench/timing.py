"""How a call is timed: warmed up, repeated until a time is spent, with a given number of threads."""

import re
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import TypeVar

import torch

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
    """The call's result, and its times: at least so many, and as many as fit into the budget in seconds."""
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
    """So many threads for torch, and for every OpenMP and BLAS library that is loaded by now."""
    before = torch.get_num_threads()
    with ExitStack() as stack:
        if find_spec("threadpoolctl") is not None:
            stack.enter_context(import_module("threadpoolctl").threadpool_limits(count))
        torch.set_num_threads(count)
        try:
            yield
        finally:
            torch.set_num_threads(before)


def reason(error: BaseException) -> str:
    """What went wrong as one short line, without the paths of this machine."""
    text = next(iter(str(error).splitlines()), "")
    return f"{type(error).__name__}: {without_paths(text)}"[:200]


def without_paths(text: str) -> str:
    """The text with file names instead of whole paths: a record must not tell where it was made."""
    return re.sub(r"(/[^/\s'\"]+)+/", "", text)
