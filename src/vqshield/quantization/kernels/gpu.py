"""The GPU backend: CUDA kernels where they serve, plain Triton kernels elsewhere; float32 results."""

import os
from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor

from vqshield.quantization.kernels.base import Backend, Recipe, Wanted
from vqshield.quantization.kernels.cuda import program
from vqshield.quantization.kernels.cuda.resident import Resident
from vqshield.quantization.noise import Draw


class Gpu(Backend):
    """Needs an NVIDIA GPU, or TRITON_INTERPRET=1 to try the kernels on a CPU.

    The shape of the images and the number of codes decide which kernels run: `Resident` for small images and
    `Strips` for large ones, where they serve; the Triton kernels of `Launch` for all others.
    """

    name = "gpu"

    def missing(self, device: torch.device) -> str | None:
        if not _has_triton():
            return "the package triton is not installed"
        if device.type == "cuda" or (device.type == "cpu" and interpreting()):
            return None
        return "its kernels run on CUDA devices"

    def kernel_name(self, device: torch.device) -> str:
        return "gpu cuda+triton" if program.can_run(device) else "gpu triton"

    def _run(
        self, wanted: Wanted, padded: Tensor, centres: Tensor | None, recipe: Recipe, draw: Draw
    ) -> Tensor:
        resident = Resident.of(padded, recipe, recipe.codes if centres is None else centres.shape[1])
        if resident is not None:
            books = None if centres is None else centres.float()
            result = resident.run(wanted, padded.float(), books, draw)
        else:
            from vqshield.quantization.kernels.triton.launch import run_in_parts

            result = run_in_parts(wanted, padded, centres, recipe, draw)
        return result.long() if wanted == "labels" else result.to(padded.dtype)


def interpreting() -> bool:
    """Whether Triton runs its kernels on the CPU, slowly, for tests."""
    return os.environ.get("TRITON_INTERPRET") == "1"


@cache
def _has_triton() -> bool:
    return find_spec("triton") is not None
