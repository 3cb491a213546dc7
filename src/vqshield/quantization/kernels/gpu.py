"""The GPU backend: CUDA kernels where they serve, plain Triton kernels elsewhere; float32 results."""

from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor

from vqshield.quantization.kernels.base import Backend, Recipe, Shape, Wanted
from vqshield.quantization.kernels.cuda import program
from vqshield.quantization.kernels.cuda.resident import Resident
from vqshield.quantization.kernels.cuda.strips import Strips
from vqshield.quantization.kernels.triton import workspace
from vqshield.quantization.kernels.triton.workspace import Sizes, Workspace
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
        if device.type == "cuda" or (device.type == "cpu" and workspace.interpreting()):
            return None
        return "its kernels run on CUDA devices"

    def kernel_name(self, device: torch.device) -> str:
        return "gpu cuda+triton" if program.can_run(device) else "gpu triton"

    def _run(
        self, wanted: Wanted, padded: Tensor, centres: Tensor | None, recipe: Recipe, draw: Draw
    ) -> Tensor:
        codes = recipe.codes if centres is None else centres.shape[1]
        resident = Resident.of(padded, recipe, codes)
        if resident is not None:
            books = None if centres is None else centres.float()
            found = resident.run(wanted, padded.float(), books, draw)
        else:
            found = _by_parts(wanted, padded, centres, recipe, draw, codes)
        return found.long() if wanted == "labels" else found.to(padded.dtype)

    def _lloyd(self, patches: Tensor, start: Tensor, iterations: int, tolerance: float) -> Tensor:
        from vqshield.quantization.kernels.triton.launch import run_rounds

        batch, count, dimensions = patches.shape
        codes = start.shape[1]
        space = Workspace.make(batch, Sizes.of(count, codes, dimensions), patches.device, patches=True)
        space.x.zero_()
        space.x[:, 0, :, dimensions] = 1
        # Centred for the same reason as in parts.py: small numbers have small rounding errors.
        middle = patches.mean((1, 2), keepdim=True)
        hi, lo = space.x[:, 0, :count, :dimensions], space.x[:, 1, :count, :dimensions]
        hi.copy_(patches - middle)
        lo.copy_((patches - middle - hi) * 2048)
        centres = space.centres[:, :codes, :dimensions]
        centres.copy_(start - middle)
        run_rounds(space, count, codes, dimensions, iterations=iterations, tolerance=tolerance)
        return (centres + middle).to(patches.dtype)


@cache
def _has_triton() -> bool:
    return find_spec("triton") is not None


def _by_parts(
    wanted: Wanted, padded: Tensor, centres: Tensor | None, recipe: Recipe, draw: Draw, codes: int
) -> Tensor:
    """What is wanted, of as many images at once as the memory holds the workspace of."""
    from vqshield.quantization.kernels.triton.launch import Launch

    count, dimensions = recipe.count(padded), recipe.dimensions(padded)
    sizes, strips = Sizes.of(count, codes, dimensions), Strips.of(padded, recipe, codes)
    fits = centres is None
    patches = fits and strips is None
    an_image = strips.patch_bytes if fits and strips is not None else sizes.bytes(patches=patches)
    most = max(1, min(workspace.AT_ONCE, recipe.memory // an_image))
    parts = max(1, -(-len(padded) // most))
    step = max(1, -(-len(padded) // parts))  # all of nearly equal size
    shape = Shape(recipe, codes, *padded.shape[1:])
    space = Workspace.make(step, sizes, padded.device, patches=patches)
    if wanted == "labels":
        found = torch.empty(len(padded), count, dtype=torch.int32, device=padded.device)
    elif wanted == "images":
        found = torch.empty_like(padded, dtype=torch.float32, memory_format=torch.contiguous_format)
    else:
        found = torch.empty(len(padded), codes, dimensions, device=padded.device)
    for first in range(0, len(padded), step):
        part = slice(first, first + step)
        launch = Launch(shape, padded[part].float(), draw[part], space, strips)
        launch.run(wanted, None if centres is None else centres[part], found[part])
    return found
