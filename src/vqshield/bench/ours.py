"""This library's backends: k-means alone, and the whole defense as a user calls it."""

from typing import ClassVar

import torch
from torch import Tensor

from vqshield import clustering
from vqshield.bench.implementation import Call, Implementation
from vqshield.bench.workloads import SETTINGS, Problem, Workload, streams
from vqshield.errors import InvalidInputError


class Ours(Implementation):
    """One of vqshield.clustering's backends."""

    ours = True
    settings: ClassVar[dict[str, tuple[str, ...]]] = {"kmeans": ("ten",), "defense": ("ten", "default")}

    def __init__(self, backend: str) -> None:
        self.backend, self.name = backend, f"vqshield-{backend}"

    def missing(self, device: torch.device) -> str | None:
        """What the registry of backends says."""
        try:
            clustering.get(self.backend, device)
        except InvalidInputError as error:
            return str(error)
        return None

    def kmeans(self, problem: Problem, threads: int) -> Call:
        """Plain k-means; an image is done once no label changes."""
        backend = clustering.get(self.backend, problem.patches.device)
        return lambda: backend.lloyd(
            problem.patches, problem.start, iterations=problem.iterations, tolerance=0.0
        )

    def defense(self, workload: Workload, images: Tensor, settings: str) -> Call:
        """The defense with its noise, checks and all."""
        shield = workload.shield(backend=self.backend, **SETTINGS[settings])
        numbers = streams(len(images), images.device)
        return lambda: shield(images, streams=numbers)
