"""The GPU backend: Triton kernels, the same random bits, float32 results."""

import importlib.util
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from vqshield import checks
from vqshield.clustering.base import (
    Recipe,
    check_centres,
    check_codes,
    check_images,
    check_lloyd,
    check_magnitude,
)
from vqshield.noise import Draw

if TYPE_CHECKING:
    from vqshield.clustering.triton.launch import Launch

SMALL = 4096  # up to so many patches, one program finds an image's codebook
AT_ONCE = 2048  # images a launch: enough to fill any GPU, and their workspace is soon reused
ROWS = 64  # patches a block in matrix products
WIDE_ROWS = 256  # and in k-means++, which has none
STRIP = 2048  # patches of a large image that one program takes
COUNTERS = 256  # blocks of four random words at once
PIXELS = 256
# Measured on an H200: how many warps a program has. Few, where matrix products wait for each other and other
# programs fill the gaps; many, where one program must get through an image.
ROUNDS = {"num_warps": 2, "num_stages": 3}
STRIP_ROUNDS = {"num_warps": 4, "num_stages": 3}
PLUS_PLUS = {"num_warps": 8}


class Triton:
    """Needs an NVIDIA GPU, or TRITON_INTERPRET=1 to try the kernels on a CPU."""

    name = "triton"

    def missing(self, device: torch.device) -> str | None:
        """Needs the package and a CUDA device."""
        if importlib.util.find_spec("triton") is None:
            return "the package triton is not installed"
        if device.type == "cuda" or (device.type == "cpu" and interpreting()):
            return None
        return "its kernels run on CUDA devices"

    def codebook(self, padded: Tensor, recipe: Recipe, draw: Draw) -> Tensor:
        """The centres of every image."""
        _check_images(padded, recipe, draw)
        check_codes(padded, recipe)
        dimensions = padded.shape[1] * recipe.grid.size**2
        centres = padded.new_empty(len(padded), recipe.codes, dimensions)

        def work(part: slice, launch: "Launch") -> None:
            launch.fit()
            centres[part] = launch.centres + 0.5

        _by_parts(padded, recipe, draw, recipe.codes, work)
        return centres

    def quantize(self, padded: Tensor, centres: Tensor, recipe: Recipe, draw: Draw) -> Tensor:
        """Every patch replaced by its nearest centre."""
        _check_images(padded, recipe, draw)
        _check_centres(centres, padded, recipe)
        output = torch.empty_like(padded, dtype=torch.float32)

        def work(part: slice, launch: "Launch") -> None:
            launch.centres.copy_(centres[part] - 0.5)
            launch.quantize(output[part])

        _by_parts(padded, recipe, draw, centres.shape[1], work)
        return output.to(padded.dtype)

    def assignments(self, padded: Tensor, centres: Tensor, recipe: Recipe, draw: Draw) -> Tensor:
        """The number of the centre that each patch is replaced by, (B, n)."""
        _check_images(padded, recipe, draw)
        _check_centres(centres, padded, recipe)
        labels = torch.empty(len(padded), recipe.grid.count(*padded.shape[2:]), dtype=torch.int64)

        def work(part: slice, launch: "Launch") -> None:
            launch.centres.copy_(centres[part] - 0.5)
            launch.quantize(torch.empty_like(padded[part], dtype=torch.float32))
            labels[part] = launch.space.labels[:, : launch.n].cpu().long()

        _by_parts(padded, recipe, draw, centres.shape[1], work)
        return labels.to(padded.device)

    def shield(self, padded: Tensor, recipe: Recipe, draw: Draw) -> Tensor:
        """Both, without the codebooks leaving the workspace."""
        _check_images(padded, recipe, draw)
        check_codes(padded, recipe)
        output = torch.empty_like(padded, dtype=torch.float32)

        def work(part: slice, launch: "Launch") -> None:
            launch.fit()
            launch.quantize(output[part])

        _by_parts(padded, recipe, draw, recipe.codes, work)
        return output.to(padded.dtype)

    def lloyd(self, patches: Tensor, start: Tensor, *, iterations: int, tolerance: float) -> Tensor:
        """Plain k-means, one program per image."""
        from vqshield.clustering.triton.launch import rounds

        check_lloyd(patches, start, iterations=iterations, tolerance=tolerance)
        check_magnitude("patches", patches)
        check_magnitude("start", start)
        batch, n, dimensions = patches.shape
        codes = start.shape[1]
        sizes = Sizes.of(n, codes, dimensions)
        space = Workspace.make(batch, sizes, dimensions, patches.device)
        # Centred for the same reason as in triton_parts: small numbers have small rounding errors.
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


def interpreting() -> bool:
    """Whether Triton runs its kernels on the CPU, slowly, for tests."""
    return os.environ.get("TRITON_INTERPRET") == "1"


@dataclass(frozen=True)
class Sizes:
    """The workspace's: patches up to whole blocks, codes and dimensions up to powers of two."""

    rows: int
    codes: int
    dimensions: int

    @classmethod
    def of(cls, patches: int, codes: int, dimensions: int) -> "Sizes":
        """Room for a one behind each patch; matrix units want at least 16."""
        whole = -(-patches // WIDE_ROWS) * WIDE_ROWS
        return cls(whole, power_of_two(codes, least=16), power_of_two(dimensions + 1, least=16))

    @property
    def bytes(self) -> int:
        """Of one image's workspace, the partial sums of its strips included."""
        strips = -(-self.rows // STRIP) if self.rows > SMALL else 0
        return self.rows * (4 * self.dimensions + 8) + 4 * (strips + 1) * self.codes * self.dimensions


@dataclass(frozen=True)
class Workspace:
    """What the kernels keep beside input and output, one share per image."""

    x: Tensor  # (B, 2, rows, dimensions): noisy patches as hi and lo, see triton_parts.py
    floats: Tensor  # (B, rows): distances, later similarities
    labels: Tensor  # (B, rows)
    centres: Tensor  # (B, codes, dimensions)

    def __getitem__(self, images: slice) -> "Workspace":
        return Workspace(self.x[images], self.floats[images], self.labels[images], self.centres[images])

    @classmethod
    def make(cls, count: int, sizes: Sizes, dimensions: int, device: torch.device) -> "Workspace":
        """Zeros, and the one behind each patch of so many dimensions."""
        x = torch.zeros(count, 2, sizes.rows, sizes.dimensions, dtype=torch.float16, device=device)
        x[:, 0, :, dimensions] = 1
        return cls(
            x,
            torch.empty(count, sizes.rows, device=device),
            torch.empty(count, sizes.rows, dtype=torch.int32, device=device),
            torch.zeros(count, sizes.codes, sizes.dimensions, device=device),
        )


def _by_parts(
    padded: Tensor, recipe: Recipe, draw: Draw, codes: int, work: "Callable[[slice, Launch], None]"
) -> None:
    """The images in parts whose workspace the memory holds."""
    from vqshield.clustering.triton.launch import Launch

    key = torch.tensor([draw.seed - 2**64 if draw.seed >= 2**63 else draw.seed], device=padded.device)
    n, dimensions = recipe.grid.count(*padded.shape[2:]), padded.shape[1] * recipe.grid.size**2
    sizes = Sizes.of(n, codes, dimensions)
    step = max(1, min(AT_ONCE, len(padded), recipe.memory // sizes.bytes))
    space = Workspace.make(step, sizes, dimensions, padded.device)
    for first in range(0, len(padded), step):
        part = slice(first, first + step)
        work(part, Launch(padded[part].float(), draw.streams[part], key, recipe, codes, space))


def power_of_two(count: int, least: int = 1) -> int:
    """The smallest power of two that so many fit in."""
    return max(least, 1 << max(0, count - 1).bit_length())
