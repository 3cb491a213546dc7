"""What a run of the benchmark measures, and for how long."""

import os
from dataclasses import dataclass

import torch

from vqshield import checks
from vqshield.bench.registry import implementation, list_implementations
from vqshield.bench.workloads import list_workloads, workload
from vqshield.errors import InvalidInputError

DEVICES = ("auto", "cpu", "cuda")
_QUICK_WORKLOADS = ("cifar-swrd-3-25", "cifar-prd-2-25", "mnist-swrd-2-2")
_SLOW_TO_START = ("torch-compile",)
_QUICK_DEADLINE = 45.0  # seconds: what starts before ends within the minute
_BUDGETS = {"cpu": 1.5, "cuda": 0.5}


@dataclass(frozen=True, kw_only=True)
class BenchSettings:
    """An empty choice means all there is (quick: a selection); budget and deadline are seconds.

    budget: how long each figure is measured, at least. passes: how often the comparison is run; the best of
    each counts, as other programs only ever slow one down. deadline: nothing is begun after it. extras: the
    machine's peak, the classifier, growth and memory besides the comparison; quick leaves the last two out.
    only: just the jobs whose names begin so, for example "growth".
    """

    quick: bool = False
    device: str = "auto"
    workloads: tuple[str, ...] = ()
    implementations: tuple[str, ...] = ()
    threads: tuple[int, ...] = ()
    budget: float | None = None
    passes: int = 1
    deadline: float | None = None
    extras: bool = True
    only: str = ""

    def __post_init__(self) -> None:
        checks.one_of("device", self.device, DEVICES)
        if self.device == "cuda" and not torch.cuda.is_available():
            raise InvalidInputError("device='cuda' is not available here; choose cpu or auto")
        for name in self.workloads:
            workload(name)
        for name in self.implementations:
            implementation(name)
        for count in self.threads:
            checks.whole("threads", count, least=1, below=(os.cpu_count() or 1) + 1)
        checks.whole("passes", self.passes, least=1)
        for name in ("budget", "deadline"):
            if getattr(self, name) is not None:
                checks.real(name, getattr(self, name))

    @property
    def place(self) -> torch.device:
        """The device itself."""
        if self.device == "auto":
            return torch.device("cuda" if torch.cuda.is_available() else "cpu")
        return torch.device(self.device)

    @property
    def chosen_workloads(self) -> tuple[str, ...]:
        """The workloads by name."""
        return self.workloads or (_QUICK_WORKLOADS if self.quick else tuple(list_workloads()))

    @property
    def chosen_implementations(self) -> tuple[str, ...]:
        """The implementations by name."""
        every = list_implementations()
        fast = [name for name in every if not (self.quick and name in _SLOW_TO_START)]
        return self.implementations or tuple(fast)

    @property
    def chosen_threads(self) -> tuple[int, ...]:
        """Numbers of threads: one and as many as torch uses; those alone on a GPU or if it must be quick."""
        usual = torch.get_num_threads()
        if self.threads:
            return tuple(sorted(set(self.threads)))
        return (usual,) if self.quick or self.place.type == "cuda" else tuple(sorted({1, usual}))

    @property
    def chosen_budget(self) -> float:
        """Seconds for each figure."""
        if self.budget is not None:
            return self.budget
        return 0.4 if self.quick else _BUDGETS[self.place.type]

    @property
    def chosen_deadline(self) -> float:
        """Seconds from the start after which nothing new is begun."""
        if self.deadline is not None:
            return self.deadline
        return _QUICK_DEADLINE if self.quick else float("inf")
