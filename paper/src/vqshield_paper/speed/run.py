"""One run of the benchmark: what is measured, for how long, and the record of it."""

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from typing import TypeVar

import torch

from vqshield.core import checks
from vqshield.core.environment import environment, pick_device
from vqshield.core.serialization import from_plain
from vqshield_paper.speed.comparison import Case, Comparison, list_cases
from vqshield_paper.speed.implementations import Implementation, implementation, list_implementations
from vqshield_paper.speed.memory import measure_memory
from vqshield_paper.speed.record import (
    BenchRecord,
    BenchRow,
    ClassifierRatio,
    ClassifierSpeed,
    Machine,
    MeasuredImplementation,
    MeasuredWorkload,
    MemoryRow,
    Peak,
    ShieldSettings,
    Skipped,
)
from vqshield_paper.speed.timing import reason, without_paths
from vqshield_paper.speed.workloads import ITERATIONS, SETTINGS, Workload, list_workloads, workload
from vqshield_paper.speed.yardsticks import CLASSIFIER, SHIELDED, measure_classifier, measure_peak

DEVICES = ("auto", "cpu", "cuda")
OUT_OF_TIME = "out of time: not started before the deadline"
_QUICK_WORKLOADS = ("cifar-swrd-3-25", "cifar-prd-2-25", "mnist-swrd-2-2")
_SLOW_TO_START = ("torch-compile",)
_QUICK_DEADLINE = 45.0  # seconds: what begins before ends within the minute
_BUDGETS = {"cpu": 1.5, "cuda": 0.5}
_PACKAGES = (
    "numpy", "triton", "scikit-learn", "scipy", "faiss-cpu", "opencv-python-headless", "fast-pytorch-kmeans",
    "flash-kmeans",
)  # fmt: skip

Found = TypeVar("Found")


@dataclass(frozen=True, kw_only=True)
class BenchSettings:
    """What a run measures. An empty choice means everything (quick: a selection).

    budget: seconds for which each row is measured, at least.
    passes: how often the comparison is run; the fastest counts, as other programs can only slow a row down.
    deadline: seconds after which nothing more starts.
    extras: the machine's peak, the classifier and, on a GPU, memory too; quick leaves the last one out.
    only: how the names of the measurements begin that are to be taken, for example "memory".
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
        pick_device(self.device)
        for name in self.workloads:
            workload(name)
        for name in self.implementations:
            implementation(name)
        for count in self.threads:
            checks.whole("threads", count, least=1, below=(os.cpu_count() or 1) + 1)
        checks.whole("passes", self.passes, least=1)
        for name, seconds in (("budget", self.budget), ("deadline", self.deadline)):
            if seconds is not None:
                checks.real(name, seconds)

    @property
    def place(self) -> torch.device:
        """The device itself."""
        return pick_device(self.device)

    @property
    def chosen_workloads(self) -> tuple[str, ...]:
        """The workloads by name."""
        return self.workloads or (_QUICK_WORKLOADS if self.quick else tuple(list_workloads()))

    @property
    def chosen_implementations(self) -> tuple[str, ...]:
        """The implementations by name."""
        left_out = _SLOW_TO_START if self.quick else ()
        return self.implementations or tuple(name for name in list_implementations() if name not in left_out)

    @property
    def chosen_threads(self) -> tuple[int, ...]:
        """Numbers of threads: one, and as many as torch uses; only the latter on a GPU or if quick."""
        usual = torch.get_num_threads()
        if self.threads:
            return tuple(sorted(set(self.threads)))
        return (usual,) if self.quick or self.place.type == "cuda" else tuple(sorted({1, usual}))

    @property
    def chosen_budget(self) -> float:
        """Seconds for each row."""
        if self.budget is not None:
            return self.budget
        return 0.4 if self.quick else _BUDGETS[self.place.type]

    @property
    def chosen_deadline(self) -> float:
        """Seconds from the start after which nothing more starts."""
        if self.deadline is not None:
            return self.deadline
        return _QUICK_DEADLINE if self.quick else float("inf")


@dataclass(frozen=True)
class BenchStep:
    """One thing to measure; `take` measures it and keeps what it finds."""

    name: str
    take: Callable[[], None]


class Bench:
    """Takes one measurement after the other; record() holds what is finished so far.

    Args:
        settings: what is measured.
        report: called with the name of each measurement as it begins, and at the end with an empty name.
    """

    def __init__(self, settings: BenchSettings, report: Callable[[str], None]) -> None:
        self._settings, self._report = settings, report
        self._device, self._budget = settings.place, settings.chosen_budget
        self._skipped: list[Skipped] = []
        self._implementations: list[Implementation] = []
        for each in map(implementation, settings.chosen_implementations):
            problem = each.missing(self._device)
            if problem is None:
                self._implementations.append(each)
            else:
                self._skip(each.name, problem)
        self._workloads = [workload(name) for name in settings.chosen_workloads]
        self._comparison = Comparison(self._device, self._budget)
        self._rows: dict[tuple[str, str, str, str, int], BenchRow] = {}
        self._peaks: list[Peak] = []
        self._classifiers: list[ClassifierSpeed] = []
        self._memory: list[MemoryRow] = []
        self._plan = [each for each in self._all() if each.name.startswith(settings.only)]
        self._finished, self._seconds = 0, 0.0

    @property
    def count(self) -> int:
        """How many measurements there are: what a progress bar counts."""
        return len(self._plan)

    def run(self) -> None:
        """Take all measurements; one that fails or comes too late is skipped and named in the record."""
        began = time.perf_counter()
        for each in self._plan:
            self._report(each.name)
            if time.perf_counter() - began > self._settings.chosen_deadline:
                self._skip(each.name, OUT_OF_TIME)
            else:
                try:
                    each.take()
                except Exception as error:  # another library's fault must not cost the other rows
                    self._skip(each.name, f"failed: {reason(error)}")
            self._finished += 1
            self._seconds = time.perf_counter() - began
        self._report("")

    def record(self) -> BenchRecord:
        """Everything measured so far, with the machine it was measured on."""
        late = any(each.reason == OUT_OF_TIME for each in self._skipped)
        return BenchRecord(
            machine=from_plain(
                Machine, {**environment(self._device), "packages": _versions()}, "the machine"
            ),
            complete=self._finished == len(self._plan) and not late,
            seconds=round(self._seconds, 1),
            budget=self._budget,
            passes=self._settings.passes,
            iterations=ITERATIONS,
            settings={name: _shield_settings(self._workloads[0], name) for name in SETTINGS},
            workloads={each.name: self._measured(each) for each in self._workloads},
            implementations={
                each.name: MeasuredImplementation(ours=each.ours, about=each.about)
                for each in self._implementations
            },
            rows=tuple(replace(row, share_of_peak=self._share(row)) for row in self._rows.values()),
            skipped=tuple(self._skipped),
            peak=tuple(self._peaks),
            classifier=tuple(self._classifiers),
            classifier_ratios=tuple(self._ratios()),
            memory=tuple(self._memory),
        )

    def _all(self) -> Iterator[BenchStep]:
        device, budget, settings = self._device, self._budget, self._settings
        threads = settings.chosen_threads
        ours = [each for each in self._implementations if each.ours]
        thorough = settings.extras and not settings.quick
        for count in threads if settings.extras else ():
            peak = partial(measure_peak, device, threads=count, budget=budget)
            yield BenchStep("the machine's peak", partial(_keep, self._peaks, peak))
        for count in threads if settings.extras else ():
            speed = partial(
                measure_classifier, device, threads=count, budget=budget, compiled=not settings.quick
            )
            yield BenchStep(f"{CLASSIFIER} forward", partial(_keep, self._classifiers, speed))
        for each in ours if thorough and device.type == "cuda" else ():
            memory = partial(measure_memory, each, device)
            yield BenchStep(f"memory {each.name}", partial(_keep, self._memory, memory))
        for case in list_cases(self._workloads, self._implementations, threads, device, settings.passes):
            yield BenchStep(str(case), partial(self._compare, case))

    def _compare(self, case: Case) -> None:
        row = self._comparison.row(case)
        known = self._rows.get(row.key)
        if known is None or row.images_per_second > known.images_per_second:
            self._rows[row.key] = row

    def _measured(self, chosen: Workload) -> MeasuredWorkload:
        return MeasuredWorkload(
            **asdict(chosen),
            count=chosen.count,
            dimensions=chosen.dimensions,
            rounds=self._comparison.rounds.get(chosen.name),
        )

    def _share(self, row: BenchRow) -> float | None:
        """Which share of the machine's float32 operations a second the row reaches.

        Of ten iterations only those that change anything are counted: running all ten is more work.
        With default settings all are counted, and the start is not: implementations that stop early, or need
        fewer operations per iteration, may exceed 1.
        """
        peaks = [peak.gflops["float32"] for peak in self._peaks if peak.threads == row.threads]
        if not peaks:
            return None
        measured = workload(row.workload)
        rounds: float = measured.shield(row.settings).iterations
        if row.settings == "ten":
            rounds = self._comparison.rounds.get(row.workload, ITERATIONS)
        return row.images_per_second * measured.flops(row.step, rounds) / (peaks[0] * 1e9)

    def _ratios(self) -> Iterator[ClassifierRatio]:
        """For every workload whose images the classifier takes."""
        for speed in self._classifiers:
            for row in self._rows.values():
                each = workload(row.workload)
                fits = (each.channels, each.side) == (SHIELDED.channels, SHIELDED.side)
                if row.step == "defense" and row.threads == speed.threads and fits:
                    yield ClassifierRatio(
                        workload=row.workload,
                        implementation=row.implementation,
                        settings=row.settings,
                        threads=row.threads,
                        share_of_forward=speed.images_per_second / row.images_per_second,
                    )

    def _skip(self, name: str, problem: str) -> None:
        self._skipped.append(Skipped(name=name, reason=without_paths(problem)))


def _keep(found: list[Found], measure: Callable[[], Found]) -> None:
    found.append(measure())


def _shield_settings(chosen: Workload, name: str) -> ShieldSettings:
    shield = chosen.shield(name)
    return ShieldSettings(
        iterations=shield.iterations,
        init=shield.init,
        tolerance=shield.tolerance,
        sigma=shield.sigma,
        tau=shield.tau,
    )


def _versions() -> dict[str, str]:
    """The versions of the packages that take part, where they are installed."""
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
