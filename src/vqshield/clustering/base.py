"""What a backend is: an implementation of codebook, assignment and rebuild."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from vqshield.noise import Draw
from vqshield.patches import Disjoint, Sliding


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Everything that decides a defense's output besides the image, the seed and its stream.

    The names are those of the defenses' settings. memory decides no value: bytes of temporaries in a call.
    """

    grid: Disjoint | Sliding
    codes: int
    iterations: int
    init: str
    tolerance: float
    sigma: float
    tau: float
    beta: float = 0.0
    weights_from: str = "clean"
    memory: int = 2**30


class Backend(Protocol):
    """One implementation of the quantizers. Images come checked, and padded to what the grid needs.

    An image's result depends on the image, the recipe, the seed and its stream alone, never on its batch.
    """

    name: str

    def missing(self, device: torch.device) -> str | None:
        """Why it cannot serve images on that device; None if it can."""
        ...

    def codebook(self, padded: Tensor, recipe: Recipe, draw: Draw) -> Tensor:
        """The centres (B, k, d) of k-means over the noisy patches of images (B, q, h, w)."""
        ...

    def quantize(self, padded: Tensor, centres: Tensor, recipe: Recipe, draw: Draw) -> Tensor:
        """Assignment and rebuild with given centres (B, k, d); clamped to [0, 1]."""
        ...

    def shield(self, padded: Tensor, recipe: Recipe, draw: Draw) -> Tensor:
        """The codebook and then the quantized images: equal to the two calls above."""
        ...

    def lloyd(self, patches: Tensor, start: Tensor, *, iterations: int, tolerance: float) -> Tensor:
        """Plain k-means from given centres: (B, n, d), (B, k, d) → (B, k, d)."""
        ...
