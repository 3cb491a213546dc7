"""The comparison itself: one task gives one row, and its result is held against the reference's."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from vqshield.bench.disturbance import BUSY, Watch
from vqshield.bench.implementation import Call, Implementation
from vqshield.bench.quality import CHECKED, DefenseCheck, KMeansCheck
from vqshield.bench.timing import limited_threads, measure
from vqshield.bench.workloads import Problem, Workload, pictures

STEPS = ("kmeans", "defense")


@dataclass(frozen=True, kw_only=True)
class Row:
    """One figure: images_per_second by the median time, and the result as a multiple of the reference's.

    other_load: the share of the processor that other programs took meanwhile.
    """

    workload: str
    implementation: str
    step: str
    settings: str
    images_per_second: float
    best_images_per_second: float
    repeats: int
    threads: int
    batch: int
    device: str
    inertia_ratio: float | None
    distortion_ratio: float | None
    other_load: float | None
    note: str

    @property
    def key(self) -> tuple[str, str, str, str, int]:
        """Rows of one key differ in the batch alone."""
        return self.workload, self.implementation, self.step, self.settings, self.threads


@dataclass(frozen=True)
class Task:
    """One figure to be measured."""

    workload: Workload
    batch: int
    step: str
    settings: str
    threads: int
    implementation: Implementation

    def __str__(self) -> str:
        return f"{self.workload.name} {self.step} {self.implementation.name}"


def tasks(
    workloads: list[Workload],
    implementations: list[Implementation],
    threads: tuple[int, ...],
    device: torch.device,
    passes: int = 1,
) -> Iterator[Task]:
    """All tasks, those with the same images one after the other; of several passes the best counts."""
    for workload in workloads:
        batches = workload.batches(device)
        for batch in batches:
            for step in STEPS * passes:
                for implementation in implementations:
                    if implementation.one_by_one and batch != batches[0]:
                        continue  # a loop gains nothing from more images
                    for settings in implementation.settings.get(step, ()):
                        for count in threads:
                            yield Task(workload, batch, step, settings, count, implementation)


def _busy(others: float | None, device: torch.device) -> str:
    if device.type != "cpu" or others is None or others <= BUSY:
        return ""
    return f"other programs used {others:.0%} of the processor"


class Comparison:
    """Measures tasks. What tasks share (images, patches, the reference's result) is kept until it changes."""

    def __init__(self, device: torch.device, budget: float) -> None:
        self.device, self.budget = device, budget
        self.rounds: dict[str, float] = {}  # by workload: iterations that change anything
        self._images: tuple[object, Tensor] | None = None
        self._problem: tuple[object, Problem, KMeansCheck] | None = None
        self._checks: dict[object, DefenseCheck] = {}

    def row(self, task: Task) -> Row:
        """The figure."""
        with limited_threads(task.threads):
            call, check, batch = self._prepared(task)
        with limited_threads(task.threads):  # again: the libraries that preparing has loaded are meant too
            warmups = 2 if self.device.type == "cuda" else 1
            watch = Watch()
            result, timing = measure(call, device=self.device, budget=self.budget, warmups=warmups)
            others = watch.others()
        ratio = check.ratio(result)
        notes = [check.note(ratio, task.implementation), _busy(others, self.device)]
        return Row(
            workload=task.workload.name,
            implementation=task.implementation.name,
            step=task.step,
            settings=task.settings,
            images_per_second=batch / timing.median,
            best_images_per_second=batch / timing.best,
            repeats=len(timing.seconds),
            threads=task.threads,
            batch=batch,
            device=self.device.type,
            inertia_ratio=ratio if task.step == "kmeans" else None,
            distortion_ratio=ratio if task.step == "defense" else None,
            other_load=others,
            note="; ".join(note for note in notes if note),
        )

    def _prepared(self, task: Task) -> tuple[Call, KMeansCheck | DefenseCheck, int]:
        """The call to be timed, what its result is checked with, and how many images it works on."""
        if task.step == "kmeans":
            problem, check = self._clustering(task)
            if task.implementation.one_by_one and self.device.type == "cuda":
                problem = problem.first(CHECKED)  # thousands of images one by one would take minutes
            return task.implementation.kmeans(problem, task.threads), check, len(problem.patches)
        self._problem = None  # its patches are ten times as large as the images
        images = self._pictures(task)
        call = task.implementation.defense(task.workload, images, task.settings)
        key = task.workload, task.batch, task.settings
        if key not in self._checks:
            self._checks[key] = DefenseCheck(task.workload, images, task.settings)
        return call, self._checks[key], len(images)

    def _pictures(self, task: Task) -> Tensor:
        key = task.workload, task.batch
        if self._images is None or self._images[0] != key:
            self._images, self._checks = (key, pictures(task.workload, task.batch, self.device)), {}
        return self._images[1]

    def _clustering(self, task: Task) -> tuple[Problem, KMeansCheck]:
        key = task.workload, task.batch
        if self._problem is None or self._problem[0] != key:
            self._problem = None  # free the old patches first
            problem = Problem.make(task.workload, self._pictures(task))
            self._problem = key, problem, KMeansCheck(problem)
            self.rounds[task.workload.name] = self._problem[2].rounds
        return self._problem[1:]
