"""Whether an implementation did the work: its result compared with this library's exact reference."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from vqshield.quantization import kernels as clustering
from vqshield_paper.speed.lloyd import lloyd
from vqshield_paper.speed.plain_torch import assign, update_by_rows
from vqshield_paper.speed.workloads import Problem, Workload, streams

CHECKED = 64  # how many images of a batch are compared
WITHIN = 0.001
# A whole defense with its own noise and start comes only this close to ours, on average over few images.
WITHIN_OTHER_NOISE = 0.15


@dataclass(frozen=True)
class Check:
    """Compares a result with the reference's by one number, `of` the first images."""

    quantity: str
    of: Callable[[Tensor], float]
    expected: float

    def ratio(self, result: Tensor) -> float | None:
        """The result's number as a multiple of the reference's; None where it is not finite."""
        found = self.of(result[:CHECKED]) / self.expected
        return found if math.isfinite(found) else None

    def note(self, ratio: float | None, *, ours: bool) -> str:
        """What is noted about a result that is not the reference's; empty if it is."""
        within = WITHIN if ours or self.quantity == "inertia" else WITHIN_OTHER_NOISE
        if ratio is not None and abs(ratio - 1) <= within:
            return ""
        return f"{self.quantity} differs from the reference's by more than {within:.1%}: not the same result"


def kmeans_check(problem: Problem) -> Check:
    """Compares centres by their inertia."""
    some = problem.first(CHECKED)
    reference = clustering.get("torch", some.patches.device)
    centres = lloyd(reference, some.patches, some.start, iterations=some.iterations)
    return Check("inertia", lambda found: inertia(some.patches, found), inertia(some.patches, centres))


def defense_check(workload: Workload, images: Tensor, settings: str) -> Check:
    """Compares shielded images by how far they are from the images: the sum of squared differences."""
    some = images[:CHECKED]

    def distortion(shielded: Tensor) -> float:
        return float((shielded.double() - some.double()).square().sum())

    shield = workload.shield(settings, backend="torch")
    return Check("distortion", distortion, distortion(shield(some, streams=streams(len(some), some.device))))


def inertia(patches: Tensor, centres: Tensor) -> float:
    """The sum of squared distances of all patches from their nearest centres, in float64."""
    total = 0.0
    for some, codebook in zip(patches, centres.to(patches.device), strict=True):
        total += float(torch.cdist(some.double(), codebook.double()).min(1).values.square().sum())
    return total


def rounds(problem: Problem) -> float:
    """How many iterations change anything, on average over the images: the rest may be left out."""
    centres, labels = problem.start, assign(problem.patches, problem.start)
    needed = torch.ones(len(centres), device=centres.device)
    for _ in range(problem.iterations - 1):
        centres = update_by_rows(problem.patches, labels, centres)
        fresh = assign(problem.patches, centres)
        needed += (fresh != labels).any(1)  # once no label changes, none ever will
        labels = fresh
    return float(needed.mean())
