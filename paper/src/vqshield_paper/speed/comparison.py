"""The comparison itself: every case is timed, its result is checked, and both become one row."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch

from vqshield_paper.speed.implementations import Call, Implementation
from vqshield_paper.speed.quality import CHECKED, Check, defense_check, kmeans_check, rounds
from vqshield_paper.speed.record import BenchRow
from vqshield_paper.speed.timing import BUSY, LoadWatch, limited_threads, measure
from vqshield_paper.speed.workloads import Problem, Workload, pictures

STEPS = ("kmeans", "defense")


@dataclass(frozen=True)
class Case:
    """What one row is measured from."""

    workload: Workload
    batch: int
    step: str
    settings: str
    threads: int
    implementation: Implementation

    def __str__(self) -> str:
        return f"{self.workload.name} {self.step} {self.implementation.name}"


def list_cases(
    workloads: list[Workload],
    implementations: list[Implementation],
    threads: tuple[int, ...],
    device: torch.device,
    passes: int = 1,
) -> Iterator[Case]:
    """All cases, those with the same images one after the other, `passes` times."""
    for workload in workloads:
        batches = workload.batches(device)
        for batch in batches:
            for step in STEPS * passes:
                for implementation in implementations:
                    if implementation.one_by_one and batch != batches[0]:
                        continue  # a loop gains nothing from more images
                    for settings in ("ten",) if step == "kmeans" else implementation.defense_settings:
                        for count in threads:
                            yield Case(workload, batch, step, settings, count, implementation)


class _Batch:
    """What the cases of one workload and batch size share, made when it is first needed."""

    def __init__(self, workload: Workload, count: int, device: torch.device) -> None:
        self.workload, self.count = workload, count
        self.images = pictures(workload, count, device)
        self._checks: dict[str, Check] = {}

    @cached_property
    def clustering(self) -> tuple[Problem, Check, float]:
        """The problem, what its results are checked with, and how many iterations change anything."""
        problem = Problem.make(self.workload, self.images)
        return problem, kmeans_check(problem), rounds(problem.first(CHECKED))

    def free_patches(self) -> None:
        """They take ten times the memory of the images."""
        self.__dict__.pop("clustering", None)

    def shielding_check(self, settings: str) -> Check:
        if settings not in self._checks:
            self._checks[settings] = defense_check(self.workload, self.images, settings)
        return self._checks[settings]


class Comparison:
    """Measures cases one after the other; the images of a batch are kept until a case needs others."""

    def __init__(self, device: torch.device, budget: float) -> None:
        self.rounds: dict[str, float] = {}  # by workload: iterations that change anything
        self._device, self._budget = device, budget
        self._batch: _Batch | None = None

    def row(self, case: Case) -> BenchRow:
        """Time the case and check its result."""
        with limited_threads(case.threads):
            call, check, images = self._prepared(case)
        with limited_threads(case.threads):  # again, for the libraries that preparing has loaded
            warmups = 2 if self._device.type == "cuda" else 1
            watch = LoadWatch()
            result, timing = measure(call, device=self._device, budget=self._budget, warmups=warmups)
            others = watch.others()
        ratio = check.ratio(result)
        notes = [check.note(ratio, ours=case.implementation.ours)]
        if self._device.type == "cpu" and others is not None and others > BUSY:
            notes.append(f"other programs used {others:.0%} of the processor")
        return BenchRow(
            workload=case.workload.name,
            implementation=case.implementation.name,
            step=case.step,
            settings=case.settings,
            images_per_second=images / timing.median,
            best_images_per_second=images / timing.best,
            repeats=len(timing.seconds),
            threads=case.threads,
            batch=images,
            device=self._device.type,
            inertia_ratio=ratio if case.step == "kmeans" else None,
            distortion_ratio=ratio if case.step == "defense" else None,
            other_load=others,
            note="; ".join(note for note in notes if note),
        )

    def _prepared(self, case: Case) -> tuple[Call, Check, int]:
        """The call to time, what its result is checked with, and how many images it works on."""
        batch = self._shared(case)
        if case.step == "kmeans":
            problem, check, self.rounds[case.workload.name] = batch.clustering
            if case.implementation.one_by_one and self._device.type == "cuda":
                problem = problem.first(CHECKED)  # thousands of images one by one would take minutes
            return case.implementation.kmeans(problem, case.threads), check, len(problem.patches)
        batch.free_patches()
        assert case.implementation.defense is not None  # list_cases makes no such case
        call = case.implementation.defense(case.workload, batch.images, case.settings)
        return call, batch.shielding_check(case.settings), len(batch.images)

    def _shared(self, case: Case) -> _Batch:
        last = self._batch
        if last is None or (last.workload, last.count) != (case.workload, case.batch):
            self._batch = last = None  # free the memory of the old one first
            self._batch = _Batch(case.workload, case.batch, self._device)
            return self._batch
        return last
