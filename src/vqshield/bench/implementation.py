"""What can be measured: an adapter around one implementation of k-means or of the whole defense."""

from abc import ABC
from collections.abc import Callable
from importlib import import_module
from typing import ClassVar

import torch
from torch import Tensor

from vqshield.bench.timing import reason
from vqshield.bench.workloads import Problem, Workload

Call = Callable[[], Tensor]


class Implementation(ABC):
    """An author sets name and settings, and writes `kmeans`, or `defense`, or both.

    Both prepare, untimed (imports, conversions, numbers of threads), and return the call that is timed.
    """

    name: str
    ours: ClassVar[bool] = False
    module: ClassVar[str | None] = None  # the package that must be installed
    devices: ClassVar[tuple[str, ...]] = ("cpu",)
    one_by_one: ClassVar[bool] = False  # takes a single image's patches: many images are a loop
    settings: ClassVar[dict[str, tuple[str, ...]]] = {"kmeans": ("ten",)}  # by step
    about: ClassVar[str] = ""  # what a reader must know of the comparison

    def missing(self, device: torch.device) -> str | None:
        """Why it cannot run there; None if it can."""
        if device.type not in self.devices:
            return f"runs on {' and '.join(self.devices)} alone"
        if self.module is not None:
            try:
                import_module(self.module)
            except ImportError as error:
                return f"not installed: {reason(error)}"
        return None

    def kmeans(self, problem: Problem, threads: int) -> Call:
        """A call that runs k-means on the problem and returns the centres (B, k, d)."""
        raise NotImplementedError

    def defense(self, workload: Workload, images: Tensor, settings: str) -> Call:
        """A call that shields the images, with settings of workloads.SETTINGS, and returns the result."""
        raise NotImplementedError
