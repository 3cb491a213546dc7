"""Patch grids: how an image is cut into s×s patches and put together again from quantized ones.

A patch is a vector in channel-major order (channel, row, column), as torch's unfold gives it. Shapes below:
B images, q channels, h×w pixels, n patches, d = q·s² values a patch, k centres.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from vqshield.core import checks

Padding = Literal["zero", "reflect"]


@dataclass(frozen=True)
class PatchGrid(ABC):
    """Where the patches of an image lie."""

    size: int

    @abstractmethod
    def shape(self, height: int, width: int) -> tuple[int, int]:
        """Rows and columns of patches."""

    @property
    @abstractmethod
    def stride(self) -> int:
        """Pixels between neighbouring patches."""

    def corners(self, height: int, width: int, index: Tensor) -> tuple[Tensor, Tensor]:
        """Row and column of the upper left pixel of the patches numbered index."""
        columns = self.shape(height, width)[1]
        return index // columns * self.stride, index % columns * self.stride

    def pad(self, images: Tensor) -> Tensor:
        """The images, enlarged where the grid needs it."""
        return images

    def count(self, height: int, width: int) -> int:
        """n, the number of patches."""
        rows, columns = self.shape(height, width)
        return rows * columns

    def dimensions(self, channels: int) -> int:
        """d, the number of values in a patch."""
        return channels * self.size**2

    def cut(self, padded: Tensor, start: int, stop: int) -> Tensor:
        """Patches start … stop−1 of padded images (B, q, h, w), as (B, stop−start, d)."""
        pixels = self._pixels(padded, torch.arange(start, stop, device=padded.device))
        flat = padded.flatten(1).index_select(1, pixels.flatten())
        return flat.view(padded.shape[0], stop - start, -1)

    def take(self, padded: Tensor, index: Tensor) -> Tensor:
        """The patches of each image that index (B, m) numbers, as (B, m, d)."""
        pixels = self._pixels(padded, index)  # (B, m, d)
        return padded.flatten(1).gather(1, pixels.flatten(1)).view(pixels.shape)

    def _pixels(self, padded: Tensor, index: Tensor) -> Tensor:
        """Where in an image the d values of the patches numbered index lie: its shape and d more."""
        channels, height, width = padded.shape[1:]
        top, left = self.corners(height, width, index)
        offsets = torch.arange(self.size, device=padded.device)
        pixels = (
            (torch.arange(channels, device=padded.device) * height * width)[:, None, None]
            + ((top[..., None] + offsets) * width)[..., None, :, None]
            + (left[..., None] + offsets)[..., None, None, :]
        )  # (…, q, s, s)
        return pixels.flatten(-3)


@dataclass(frozen=True)
class Disjoint(PatchGrid):
    """Adjacent patches; an image that does not divide evenly is padded at the bottom and the right."""

    padding: str = "zero"

    def __post_init__(self) -> None:
        checks.one_of("padding", self.padding, get_args(Padding))

    def shape(self, height: int, width: int) -> tuple[int, int]:
        """⌈h/s⌉ × ⌈w/s⌉."""
        return -(-height // self.size), -(-width // self.size)

    @property
    def stride(self) -> int:
        return self.size

    def pad(self, images: Tensor) -> Tensor:
        """The images with h and w raised to multiples of s."""
        height, width = images.shape[2:]
        missing = (0, -width % self.size, 0, -height % self.size)
        if not any(missing):
            return images
        return F.pad(images, missing, mode="constant" if self.padding == "zero" else "reflect")

    def rebuild(self, centres: Tensor, labels: Tensor, height: int, width: int) -> Tensor:
        """The centres (B, k, d) in place of the patches that labels (B, n) give to them: (B, q, h, w)."""
        batch, _, dimensions = centres.shape
        size = self.size
        rows, columns = self.shape(height, width)
        patches = centres.gather(1, labels[:, :, None].expand(-1, -1, dimensions))
        tiles = patches.view(batch, rows, columns, -1, size, size).permute(0, 3, 1, 4, 2, 5)
        return tiles.reshape(batch, -1, rows * size, columns * size)[:, :, :height, :width]


class Sliding(PatchGrid):
    """Every s×s window, stride one."""

    def shape(self, height: int, width: int) -> tuple[int, int]:
        """(h−s+1) × (w−s+1)."""
        return height - self.size + 1, width - self.size + 1

    @property
    def stride(self) -> int:
        return 1

    def rebuild(self, centres: Tensor, labels: Tensor, similarity: Tensor, height: int, width: int) -> Tensor:
        """Each pixel as the mean of it in all quantized windows that cover it: (B, q, h, w).

        A window's weight is exp(similarity), similarity (B, n) = −beta·‖p̂−p‖² in the paper. The largest
        similarity over a pixel's own windows is subtracted first: beta may be in the hundred thousands.
        """
        batch, codes, dimensions = centres.shape
        components = centres.view(batch, codes, dimensions // self.size**2, self.size, self.size)
        windows = labels[:, None, :].expand(-1, components.shape[2], -1)

        def values_at(dy: int, dx: int) -> Tensor:
            return components[..., dy, dx].transpose(1, 2).gather(2, windows)

        return self._blended(values_at, similarity, height, width)

    def blend(self, windows: Tensor, similarity: Tensor, height: int, width: int) -> Tensor:
        """As rebuild, from the windows themselves, (B, n, d) each its own; differentiable in both."""
        components = torch.unflatten(windows.transpose(1, 2), 1, (-1, self.size, self.size))
        return self._blended(lambda dy, dx: components[:, :, dy, dx], similarity, height, width)

    def _blended(
        self, values_at: Callable[[int, int], Tensor], similarity: Tensor, height: int, width: int
    ) -> Tensor:
        """Means of the windows' values, which values_at gives at one place in all windows, (B, q, n)."""
        size, (rows, columns) = self.size, self.shape(height, width)
        plane = similarity.view(len(similarity), 1, rows, columns)
        around = (size - 1,) * 4
        largest = F.max_pool2d(F.pad(plane.detach(), around, value=-torch.inf), size, stride=1)
        total = weights = plane.new_zeros(())
        for dy in range(size):
            for dx in range(size):
                margins = (dx, size - 1 - dx, dy, size - 1 - dy)
                weight = (plane - largest[..., dy : dy + rows, dx : dx + columns]).exp()
                values = torch.unflatten(values_at(dy, dx), 2, (rows, columns))
                total = total + F.pad(values * weight, margins)
                weights = weights + F.pad(weight, margins)
        return total / weights
