"""The defense for small images, by resident.cu: which ones, and how it is launched."""

import ctypes
import math
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from vqshield.clustering.base import Recipe
from vqshield.clustering.cuda import program
from vqshield.noise import KEY_STEPS, LARGEST_NORMAL, ROUNDS, WORD, Draw
from vqshield.patches import Sliding

_MOST_PRODUCTS = 12  # tiles of 16 codes times steps of 16 dimensions: their operands stay in registers
_MOST_DIMENSIONS = 128  # a warp has a lane for every four
_MOST_PATCHES = 2**15  # up to which a product with a reciprocal divides exactly, and sums are fine enough
_LITTLE = 48 * 1024  # bytes of shared memory
_ROUNDING = 1e-6  # of half a squared distance, for norms of about one


class _Given(ctypes.Structure):
    """As in resident.cu."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("images", "streams", "codebooks", "output", "labels")),
        *((name, ctypes.c_float) for name in ("sigma", "tau", "beta", "scale", "most", "doubt")),
        *((name, ctypes.c_int) for name in ("finds", "spread", "noisy", "height", "width", "rows", "columns")),
        *((name, ctypes.c_int) for name in ("codes", "iterations", "limit")),
        ("reciprocal", ctypes.c_uint32),
        ("keys", ctypes.c_uint32 * (2 * ROUNDS)),
    )


@dataclass(frozen=True)
class Resident:
    """The defense for images of one shape, with one recipe and number of codes: a block of threads an image."""

    recipe: Recipe
    codes: int
    channels: int
    height: int
    width: int

    @classmethod
    def of(cls, padded: Tensor, recipe: Recipe, codes: int) -> "Resident | None":
        """What serves these images, if anything does."""
        found = cls(recipe, codes, *padded.shape[1:])
        return found if found._serves(padded.device) else None

    @property
    def patches(self) -> int:
        """n, the number of patches in an image."""
        return self.recipe.grid.count(self.height, self.width)

    @property
    def dimensions(self) -> int:
        """d, the number of values in a patch."""
        return self.channels * self.recipe.grid.size**2

    @property
    def tiles(self) -> int:
        """Of 16 codes each."""
        return -(-self.codes // 16)

    @property
    def steps(self) -> int:
        """Of 16 dimensions each, half the squared norm among them."""
        return self.dimensions // 16 + 1

    def shared(self, warps: int) -> int:
        """Bytes of a block's shared memory, as room_of in resident.cu lays it out."""
        n, d, codes = self.patches, self.dimensions, 16 * self.tiles
        groups, quads, read = -(-n // 32), d // 4 + 1, 16 * self.steps
        stride = 4 * (quads | 1)
        start = codes + groups * 98
        rounds = codes * (read + 2 + 4 * quads) + groups * 32 + -(-groups // warps) * warps * 16
        return 4 * (n * stride + max(0, read - stride) + codes + 4 + max(start, rounds))

    def warps(self) -> int:
        """Of a block; fewer, where more blocks find room beside each other: so measured on an H200."""
        return 4 if self.shared(4) <= _LITTLE else 8

    def codebook(self, images: Tensor, draw: Draw) -> Tensor:
        """The centres (B, k, d) of float32 images (B, q, h, w)."""
        centres = images.new_empty(len(images), self.codes, self.dimensions)
        self._launch(images, draw, finds=True, codebooks=centres)
        return centres

    def quantize(self, images: Tensor, centres: Tensor, draw: Draw) -> Tensor:
        """Assignment and rebuild with given centres."""
        output = torch.empty_like(images)
        self._launch(images, draw, finds=False, codebooks=centres, output=output)
        return output

    def shield(self, images: Tensor, draw: Draw) -> Tensor:
        """The codebook and then the quantized images."""
        output = torch.empty_like(images)
        self._launch(images, draw, finds=True, output=output)
        return output

    def assignments(self, images: Tensor, centres: Tensor, draw: Draw) -> Tensor:
        """The numbers (B, n) of the centres that quantize puts in place of the patches, int32."""
        labels = torch.empty(len(images), self.patches, dtype=torch.int32, device=images.device)
        output = torch.empty_like(images)
        self._launch(images, draw, finds=False, codebooks=centres, output=output, labels=labels)
        return labels

    def _serves(self, device: torch.device) -> bool:
        """Whether the image's patches and the operands of k-means find room on that device."""
        return (
            self.tiles * self.steps <= _MOST_PRODUCTS
            and self.dimensions < _MOST_DIMENSIONS
            and self.patches <= _MOST_PATCHES
            and program.can_run(device)
            and self.shared(self.warps()) <= program.most_shared(device)
        )

    def _launch(
        self,
        images: Tensor,
        draw: Draw,
        *,
        finds: bool,
        codebooks: Tensor | None = None,
        output: Tensor | None = None,
        labels: Tensor | None = None,
    ) -> None:
        recipe, n = self.recipe, self.patches
        rows, columns = recipe.grid.shape(self.height, self.width)
        largest = 0.5 + LARGEST_NORMAL * recipe.sigma  # value of a patch less ½
        given = [one if one is None else one.contiguous() for one in (images, draw.streams, codebooks)]
        pointers = [None if one is None else one.data_ptr() for one in (*given, output, labels)]
        argument = _Given(
            *pointers, recipe.sigma, recipe.tau, recipe.beta,
            2.0 ** math.floor(30 - math.log2(n * max(1.0, largest))),
            n * self.dimensions * (2 * largest) ** 2,
            _ROUNDING * (1 + self.dimensions * largest**2 / 2),
            finds, recipe.init == "kmeans++", recipe.weights_from == "noisy",
            self.height, self.width, rows, columns,
            self.codes, recipe.iterations, math.floor(recipe.tolerance * n),
            -(-(2**32) // columns) % 2**32, _keys(draw.seed),
        )  # fmt: skip
        warps, sliding = self.warps(), isinstance(recipe.grid, Sliding)
        # As many as there is room for beside each other, and registers.
        blocks = max(1, min(16 // warps, program.most_shared(images.device) // self.shared(warps)))
        kernel = _kernel(
            images.device, self.channels, recipe.grid.size, sliding, self.tiles, warps, blocks
        )
        kernel.launch(argument, len(images), threads=32 * warps, shared=self.shared(warps))


@lru_cache(maxsize=64)
def _keys(seed: int) -> "ctypes.Array[ctypes.c_uint32]":
    """What each round of Philox adds to the counter."""
    words = zip((seed & WORD, seed >> 32), KEY_STEPS, strict=True)
    return (ctypes.c_uint32 * (2 * ROUNDS))(
        *((word + number * step) & WORD for word, step in words for number in range(ROUNDS))
    )


@lru_cache(maxsize=None)
def _kernel(
    device: torch.device, channels: int, size: int, sliding: bool, tiles: int, warps: int, blocks: int
) -> program.Kernel:
    constants = {"CHANNELS": channels, "SIZE": size, "SLIDING": int(sliding), "TILES": tiles}
    constants |= {"THREADS": 32 * warps, "BLOCKS": blocks}
    return program.Kernel("resident.cu", "resident_kernel", constants, device)
