"""Whether an implementation did the work: its result beside that of this library's reference."""

import torch
from torch import Tensor

from vqshield import clustering
from vqshield.bench.implementation import Implementation
from vqshield.bench.plain import assign, update_by_rows
from vqshield.bench.workloads import SETTINGS, Problem, Workload, streams

CHECKED = 64  # so many images of a batch are compared
INERTIA_WITHIN = 0.001
# A whole defense with noise and start of its own comes only so close to ours, on average over few images.
DISTORTION_WITHIN = 0.15


def inertia(patches: Tensor, centres: Tensor) -> float:
    """The sum of squared distances of all patches from their nearest centres, in float64."""
    total = 0.0
    for some, codebook in zip(patches, centres.to(patches.device), strict=True):
        total += float(torch.cdist(some.double(), codebook.double()).min(1).values.square().sum())
    return total


def rounds(problem: Problem) -> float:
    """How many iterations change anything, on average over the images: what follows may be left out."""
    centres, labels = problem.start, assign(problem.patches, problem.start)
    needed = torch.ones(len(centres), device=centres.device)
    for _ in range(problem.iterations - 1):
        centres = update_by_rows(problem.patches, labels, centres)
        fresh = assign(problem.patches, centres)
        needed += (fresh != labels).any(1)  # once no label changes, none ever will
        labels = fresh
    return float(needed.mean())


class KMeansCheck:
    """Compares centres by their inertia."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem.first(CHECKED)
        reference = clustering.get("torch", problem.patches.device)
        centres = reference.lloyd(
            self.problem.patches, self.problem.start, iterations=problem.iterations, tolerance=0.0
        )
        self.expected = inertia(self.problem.patches, centres)
        self.rounds = rounds(self.problem)

    def ratio(self, centres: Tensor) -> float:
        """The inertia as a multiple of the reference's."""
        return inertia(self.problem.patches, centres[:CHECKED]) / self.expected

    def note(self, ratio: float, implementation: Implementation) -> str:
        """What stands in the row where the implementation did something else."""
        return _note("inertia", ratio, INERTIA_WITHIN)


class DefenseCheck:
    """Compares shielded images by how far they are from the images: the sum of squared differences."""

    def __init__(self, workload: Workload, images: Tensor, settings: str) -> None:
        self.images = images[:CHECKED]
        shield = workload.shield(backend="torch", **SETTINGS[settings])
        numbers = streams(len(self.images), images.device)
        self.expected = self._distortion(shield(self.images, streams=numbers))

    def ratio(self, shielded: Tensor) -> float:
        """The distortion as a multiple of the reference's."""
        return self._distortion(shielded[:CHECKED]) / self.expected

    def note(self, ratio: float, implementation: Implementation) -> str:
        """What stands in the row where the implementation did something else."""
        return _note("distortion", ratio, INERTIA_WITHIN if implementation.ours else DISTORTION_WITHIN)

    def _distortion(self, shielded: Tensor) -> float:
        return float((shielded.double() - self.images.double()).square().sum())


def _note(what: str, ratio: float, within: float) -> str:
    if abs(ratio - 1) <= within:  # false for nan too
        return ""
    return f"{what} differs from the reference's by more than {within:.1%}: not the same result"
