"""The GPU backend: CUDA kernels where they serve, Triton kernels elsewhere; float32 results."""

import importlib.util
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from vqshield.core import checks
from vqshield.quantization.kernels.base import (
    Recipe,
    check_centres,
    check_codes,
    check_images,
    check_lloyd,
    check_magnitude,
)
from vqshield.quantization.kernels.cuda.resident import Resident
from vqshield.quantization.kernels.cuda.strips import Strips
from vqshield.quantization.kernels.triton import workspace
from vqshield.quantization.kernels.triton.workspace import Sizes, Workspace
from vqshield.quantization.noise import Draw

if TYPE_CHECKING:
    from vqshield.quantization.kernels.triton.launch import Launch


class Gpu:
    """Needs an NVIDIA GPU, or TRITON_INTERPRET=1 to try the kernels on a CPU."""

    name = "gpu"
    dtypes: tuple[torch.dtype, ...] = checks.IMAGE_DTYPES

    def missing(self, device: torch.device) -> str | None:
        if importlib.util.find_spec("triton") is None:
            return "the package triton is not installed"
        if device.type == "cuda" or (device.type == "cpu" and workspace.interpreting()):
            return None
        return "its kernels run on CUDA devices"

    def codebook(self, padded: Tensor, recipe: Recipe, draw: Draw) -> Tensor:
        _check_images(padded, recipe, draw)
        check_codes(padded, recipe)
        resident = Resident.of(padded, recipe, recipe.codes)
        if resident is not None:
            return resident.codebook(padded.float(), draw).to(padded.dtype)
        dimensions = padded.shape[1] * recipe.grid.size**2
        centres = padded.new_empty(len(padded), recipe.codes, dimensions)

        def work(part: slice, launch: "Launch") -> None:
            launch.fit()
            centres[part] = launch.centres + 0.5

        _by_parts(padded, recipe, draw, recipe.codes, work, fits=True)
        return centres

    def quantize(self, padded: Tensor, centres: Tensor, recipe: Recipe, draw: Draw) -> Tensor:
        _check_images(padded, recipe, draw)
        _check_centres(centres, padded, recipe)
        resident = Resident.of(padded, recipe, centres.shape[1])
        if resident is not None:
            return resident.quantize(padded.float(), centres.float(), draw).to(padded.dtype)
        output = torch.empty_like(padded, dtype=torch.float32)

        def work(part: slice, launch: "Launch") -> None:
            launch.centres.copy_(centres[part] - 0.5)
            launch.quantize(output[part])

        _by_parts(padded, recipe, draw, centres.shape[1], work, fits=False)
        return output.to(padded.dtype)

    def assignments(self, padded: Tensor, centres: Tensor, recipe: Recipe, draw: Draw) -> Tensor:
        """The number of the centre that each patch is replaced by, (B, n)."""
        _check_images(padded, recipe, draw)
        _check_centres(centres, padded, recipe)
        resident = Resident.of(padded, recipe, centres.shape[1])
        if resident is not None:
            return resident.assignments(padded.float(), centres.float(), draw).long()
        shape = len(padded), recipe.grid.count(*padded.shape[2:])
        labels = torch.empty(shape, dtype=torch.int64, device=padded.device)

        def work(part: slice, launch: "Launch") -> None:
            launch.centres.copy_(centres[part] - 0.5)
            launch.quantize(torch.empty_like(padded[part], dtype=torch.float32))
            labels[part] = launch.space.labels[:, : launch.n]

        _by_parts(padded, recipe, draw, centres.shape[1], work, fits=False)
        return labels

    def shield(self, padded: Tensor, recipe: Recipe, draw: Draw) -> Tensor:
        _check_images(padded, recipe, draw)
        check_codes(padded, recipe)
        resident = Resident.of(padded, recipe, recipe.codes)
        if resident is not None:
            return resident.shield(padded.float(), draw).to(padded.dtype)
        output = torch.empty_like(padded, dtype=torch.float32)

        def work(part: slice, launch: "Launch") -> None:
            launch.fit()
            launch.quantize(output[part])

        _by_parts(padded, recipe, draw, recipe.codes, work, fits=True)
        return output.to(padded.dtype)

    def lloyd(self, patches: Tensor, start: Tensor, *, iterations: int, tolerance: float) -> Tensor:
        """Plain k-means, one program per image."""
        from vqshield.quantization.kernels.triton.launch import rounds

        check_lloyd(patches, start, iterations=iterations, tolerance=tolerance)
        check_magnitude("patches", patches)
        check_magnitude("start", start)
        batch, n, dimensions = patches.shape
        codes = start.shape[1]
        sizes = Sizes.of(n, codes, dimensions)
        space = Workspace.make(batch, sizes, patches.device, patches=True)
        space.x.zero_()
        space.x[:, 0, :, dimensions] = 1
        # Centred for the same reason as in parts.py: small numbers have small rounding errors.
        middle = patches.mean((1, 2), keepdim=True)
        hi, lo = space.x[:, 0, :n, :dimensions], space.x[:, 1, :n, :dimensions]
        hi.copy_(patches - middle)
        lo.copy_((patches - middle - hi) * 2048)
        space.centres[:, :codes, :dimensions] = start - middle
        rounds(space, sizes, n, codes, dimensions, iterations=iterations, tolerance=tolerance)
        return (space.centres[:, :codes, :dimensions] + middle).to(patches.dtype)


def _check_images(padded: Tensor, recipe: Recipe, draw: Draw) -> None:
    check_images(padded, recipe, draw)
    checks.pixel_values(padded)


def _check_centres(centres: Tensor, padded: Tensor, recipe: Recipe) -> None:
    check_centres(centres, padded, recipe)
    check_magnitude("centres", centres)


def _by_parts(
    padded: Tensor,
    recipe: Recipe,
    draw: Draw,
    codes: int,
    work: "Callable[[slice, Launch], None]",
    *,
    fits: bool,
) -> None:
    """The images in parts whose workspace the memory holds; whether the work is to find codebooks."""
    from vqshield.quantization.kernels.triton.launch import Launch

    n, dimensions = recipe.grid.count(*padded.shape[2:]), padded.shape[1] * recipe.grid.size**2
    sizes = Sizes.of(n, codes, dimensions)
    strips = Strips.of(padded, recipe, codes)
    patches = fits and strips is None
    an_image = strips.patch_bytes if fits and strips is not None else sizes.bytes(patches=patches)
    most = max(1, min(workspace.AT_ONCE, recipe.memory // an_image))
    parts = max(1, -(-len(padded) // most))
    step = max(1, -(-len(padded) // parts))  # all of nearly equal size
    space = Workspace.make(step, sizes, padded.device, patches=patches)
    for first in range(0, len(padded), step):
        part = slice(first, first + step)
        work(part, Launch(padded[part].float(), draw[part], recipe, codes, space, strips))
