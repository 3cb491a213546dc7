"""The backend "torch": the reference in plain torch, behind the checks that every backend has."""

import torch
from torch import Tensor

from vqshield.quantization.kernels.base import Backend, Recipe, Wanted
from vqshield.quantization.kernels.reference import Reference
from vqshield.quantization.noise import Draw


class Exact(Backend):
    """Exact, on any device with float64."""

    name = "torch"
    _reference = Reference()

    def missing(self, device: torch.device) -> str | None:
        return self._reference.missing(device)

    def _run(
        self, wanted: Wanted, padded: Tensor, centres: Tensor | None, recipe: Recipe, draw: Draw
    ) -> Tensor:
        if centres is None:
            find = self._reference.codebook if wanted == "centres" else self._reference.shield
            return find(padded, recipe, draw)
        apply = self._reference.assignments if wanted == "labels" else self._reference.quantize
        return apply(padded, centres, recipe, draw)
