"""The noisy patches of a batch of images, made block by block, for the reference backend."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from vqshield.quantization.fixed_point import FixedPoint
from vqshield.quantization.noise import Draw, Stage
from vqshield.quantization.patches import PatchGrid

_VALUES_A_BLOCK = 2**21  # 16 MiB of float64 a block: a few images' patches, or a strip of one large image


@dataclass(frozen=True)
class NoisyPatches:
    """The patches of a batch plus sigma·N(0, I), independent for every patch, rounded to the grid of fixed.

    They are made block by block. `kept` holds the blocks where memory allows; without it every pass makes
    them again, with the same values, because the noise is counter-based.
    """

    padded: Tensor  # (B, q, h, w)
    grid: PatchGrid
    scale: float  # sigma or tau
    stage: Stage
    draw: Draw
    fixed: FixedPoint
    kept: tuple[Tensor, ...] | None = None

    @property
    def count(self) -> int:
        """n, the number of patches in an image."""
        return self.grid.count(*self.padded.shape[2:])

    @property
    def dimensions(self) -> int:
        """d, the number of values in a patch."""
        return self.grid.dimensions(self.padded.shape[1])

    @property
    def block(self) -> int:
        """How many patches of each image make a block; it depends on the image size alone."""
        return max(1, min(self.count, _VALUES_A_BLOCK // self.dimensions))

    @property
    def bytes_if_kept(self) -> int:
        """Roughly the memory of k-means with kept blocks, labels, distances and one block's temporaries."""
        everything = len(self.padded) * self.count * (8 * self.dimensions + 48)
        return everything + len(self.padded) * self.block * self.dimensions * 64

    def __iter__(self) -> Iterator[Tensor]:
        """The blocks (B, m, d) in order, float64."""
        if self.kept is not None:
            yield from self.kept
        else:
            for start in range(0, self.count, self.block):
                yield self.make(start, min(self.count, start + self.block))

    def keep(self) -> "NoisyPatches":
        """The same patches, held in memory."""
        return replace(self, kept=tuple(self))

    def select(self, images: Tensor) -> "NoisyPatches":
        """The patches of some images of the batch."""
        kept = None if self.kept is None else tuple(block[images] for block in self.kept)
        return replace(self, padded=self.padded[images], draw=self.draw[images], kept=kept)

    def gather(self, index: Tensor) -> Tensor:
        """Patch number index[b] of every image b, as (B, d)."""
        found = torch.zeros(len(index), self.dimensions, dtype=torch.float64, device=index.device)
        for number, block in enumerate(self):
            inside = index - number * self.block
            here = (inside >= 0) & (inside < block.shape[1])
            rows = inside.clamp(0, block.shape[1] - 1)[:, None, None].expand(-1, 1, block.shape[2])
            found = torch.where(here[:, None], block.gather(1, rows)[:, 0], found)
        return found

    def make(self, start: int, stop: int) -> Tensor:
        """Patches start … stop−1, (B, stop−start, d)."""
        clean = self.grid.cut(self.padded, start, stop).double()
        if self.scale > 0:
            first, count = start * self.dimensions, (stop - start) * self.dimensions
            clean += self.draw.normals(self.stage, first, count).view_as(clean).mul_(self.scale)
        return self.fixed.round_patches(clean)
