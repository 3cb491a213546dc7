"""The whole benchmark in one call: the comparison, and what its figures are held against."""

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from vqshield.bench import classifier, growth, memory
from vqshield.bench.comparison import Comparison, Row, Task, tasks
from vqshield.bench.implementation import Implementation
from vqshield.bench.peak import peak
from vqshield.bench.registry import implementation
from vqshield.bench.settings import BenchSettings
from vqshield.bench.timing import limited_threads, reason, without_paths
from vqshield.bench.workloads import ITERATIONS, SETTINGS, workload
from vqshield.environment import environment

OUT_OF_TIME = "out of time: not begun before the deadline"
_PACKAGES = (
    "numpy",
    "triton",
    "scikit-learn",
    "scipy",
    "faiss-cpu",
    "opencv-python-headless",
    "fast-pytorch-kmeans",
    "flash-kmeans",
)

Job = tuple[str, Callable[[], None]]


class Bench:
    """Runs job by job; record() holds whatever is finished so far."""

    def __init__(self, settings: BenchSettings, report: Callable[[str], None]) -> None:
        """`report` is called with each job that is about to begin, and at the end with an empty name."""
        self.settings, self._report = settings, report
        self.device, self.budget = settings.place, settings.chosen_budget
        self.threads = settings.chosen_threads
        self.skipped: list[dict[str, str]] = []
        self.found: list[Implementation] = []
        for name in settings.chosen_implementations:
            problem = implementation(name).missing(self.device)
            if problem is None:
                self.found.append(implementation(name))
            else:
                self._skip(name, problem)
        self.workloads = [workload(name) for name in settings.chosen_workloads]
        self.peaks: list[dict[str, Any]] = []
        self.forwards: list[dict[str, Any]] = []
        self.growth: list[dict[str, Any]] = []
        self.memory: list[dict[str, Any]] = []
        self.seconds = 0.0
        self._rows: dict[tuple[str, str, str, str, int], Row] = {}
        self._comparison = Comparison(self.device, self.budget)
        self._jobs = [job for job in self._all_jobs() if job[0].startswith(settings.only)]
        self._finished = 0

    @property
    def work(self) -> int:
        """How many jobs there are: what a progress bar counts."""
        return len(self._jobs)

    def run(self) -> None:
        """Do all jobs; one that fails or comes too late is skipped and named."""
        began = time.perf_counter()
        for name, job in self._jobs:
            self._report(name)
            if time.perf_counter() - began > self.settings.chosen_deadline:
                self._skip(name, OUT_OF_TIME)
            else:
                try:
                    job()
                except Exception as error:  # another library's fault must not cost the other figures
                    self._skip(name, f"failed: {reason(error)}")
            self._finished += 1
            self.seconds = time.perf_counter() - began
        self._report("")

    def record(self) -> dict[str, Any]:
        """Everything measured so far, with the machine it was measured on."""
        return {
            "what": "speed of the shield and of other k-means on the same patches",
            "machine": {**environment(self.device), "packages": _versions()},
            "complete": self._complete,
            "seconds": round(self.seconds, 1),
            "budget": self.budget,
            "passes": self.settings.passes,
            "iterations": ITERATIONS,
            "settings": {name: self._defaults(name) for name in SETTINGS},
            "workloads": {
                each.name: {
                    **asdict(each),
                    "count": each.count,
                    "dimensions": each.dimensions,
                    "rounds": self._comparison.rounds.get(each.name),
                }
                for each in self.workloads
            },
            "implementations": {each.name: {"ours": each.ours, "about": each.about} for each in self.found},
            "rows": [{**asdict(row), "share_of_peak": self._share(row)} for row in self._rows.values()],
            "skipped": self.skipped,
            "peak": self.peaks,
            "classifier": self.forwards,
            "classifier_ratios": list(self._ratios()),
            "growth": self.growth,
            "memory": self.memory,
        }

    @property
    def _complete(self) -> bool:
        late = any(entry["reason"] == OUT_OF_TIME for entry in self.skipped)
        return self._finished == len(self._jobs) and not late

    def _all_jobs(self) -> Iterator[Job]:
        ours = [each for each in self.found if each.ours]
        extras, thorough = self.settings.extras, self.settings.extras and not self.settings.quick
        for count in self.threads if extras else ():
            yield "the machine's peak", partial(self._measure_peak, count)
        for count in self.threads if extras else ():
            yield f"{classifier.NAME} forward", partial(self._measure_classifier, count)
        for each in ours if thorough and self.device.type == "cuda" else ():
            yield f"memory {each.name}", partial(self._measure_memory, each)
        for task in tasks(self.workloads, self.found, self.threads, self.device, self.settings.passes):
            yield str(task), partial(self._measure_task, task)
        for each in ours[:1] if thorough else ():  # the fastest here, as the registry has them
            for point in growth.points(self.device, self.threads):
                name = f"growth with {point.axis} {each.name}"
                yield name, partial(self._measure_growth, point, each)

    def _measure_task(self, task: Task) -> None:
        row = self._comparison.row(task)
        known = self._rows.get(row.key)
        if known is None or row.images_per_second > known.images_per_second:
            self._rows[row.key] = row

    def _measure_peak(self, count: int) -> None:
        with limited_threads(count):
            self.peaks.append(peak(self.device, budget=self.budget))

    def _measure_classifier(self, count: int) -> None:
        with limited_threads(count):
            compiled = not self.settings.quick
            self.forwards.append(classifier.forwards(self.device, budget=self.budget, compiled=compiled))

    def _measure_growth(self, point: growth.Point, each: Implementation) -> None:
        self.growth.append(growth.grow(point, each, self.device, self.budget))

    def _measure_memory(self, each: Implementation) -> None:
        self.memory.append(memory.peak_memory(each, growth.BASE, self.device))

    def _share(self, row: Row) -> float | None:
        """Which share of the machine's measured float32 operations a second the row's own make, counting
        only iterations that change anything: one that goes on to the tenth does more than is counted.
        """
        found: list[float] = [
            peak["gflops"]["float32"] for peak in self.peaks if peak["threads"] == row.threads
        ]
        if not found or row.settings != "ten":  # otherwise the number of iterations is not known
            return None
        rounds = self._comparison.rounds.get(row.workload, ITERATIONS)
        return row.images_per_second * workload(row.workload).flops(row.step, rounds) / (found[0] * 1e9)

    def _ratios(self) -> Iterator[dict[str, Any]]:
        """The time of the whole defense as a share of the classifier's forward pass, for images it takes."""
        for forward in self.forwards:
            for row in self._rows.values():
                each = workload(row.workload)
                fits = (each.channels, each.side) == (classifier.SHIELDED.channels, classifier.SHIELDED.side)
                if row.step == "defense" and row.threads == forward["threads"] and fits:
                    yield {
                        "workload": row.workload,
                        "implementation": row.implementation,
                        "settings": row.settings,
                        "threads": row.threads,
                        "share_of_forward": forward["images_per_second"] / row.images_per_second,
                    }

    def _skip(self, name: str, problem: str) -> None:
        self.skipped.append({"name": name, "reason": without_paths(problem)})

    def _defaults(self, name: str) -> dict[str, Any]:
        shield = self.workloads[0].shield(**SETTINGS[name])
        return {key: getattr(shield, key) for key in ("iterations", "init", "tolerance", "sigma", "tau")}


def _versions() -> dict[str, str]:
    """The versions of the packages that take part, where they are installed."""
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
