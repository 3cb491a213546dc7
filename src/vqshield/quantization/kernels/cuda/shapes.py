"""What resident.cu and strips.cu are compiled for and told about images, and whether they can serve them."""

import ctypes
import math
from functools import lru_cache

from vqshield.quantization.kernels.shapes import Shape
from vqshield.quantization.noise import KEY_STEPS, LARGEST_NORMAL, ROUNDS, WORD

_MOST_PRODUCTS = 12  # whose operands registers hold
_MOST_DIMENSIONS = 128  # a warp has a lane for every four
_ROUNDING = 1e-6  # of half a squared distance, for norms of about one


class Cut(ctypes.Structure):
    """How an image is cut into patches, as in products.cuh."""

    _fields_ = (
        *((name, ctypes.c_int) for name in ("height", "width", "rows", "columns")),
        ("reciprocal", ctypes.c_uint32),
    )


Keys = ctypes.c_uint32 * (2 * ROUNDS)
"""What each round of Philox adds to the counter, as in noise.cuh."""


class CudaShape(Shape):
    """A shape, and how these kernels lay it out."""

    @property
    def tiles(self) -> int:
        """Of 16 codes each."""
        return -(-self.codes // 16)

    @property
    def room_for_codes(self) -> int:
        """All codes of all tiles."""
        return 16 * self.tiles

    @property
    def read(self) -> int:
        """Words of a patch that a product reads: 16 a step, half the squared norm among them."""
        return 16 * (self.dimensions // 16 + 1)

    @property
    def products(self) -> int:
        """Tiles of 16 codes times steps of 16 dimensions, whose operands a lane has in registers."""
        return self.tiles * (self.read // 16)

    @property
    def tally(self) -> int:
        """Values of a cluster's sum, its size among them, up to whole quads."""
        return 4 * (self.dimensions // 4 + 1)

    @property
    def stride(self) -> int:
        """Words of a patch: an odd number of quads."""
        return 4 * (self.dimensions // 4 + 1 | 1)

    @property
    def behind(self) -> int:
        """Words behind the last patch that a product reads too."""
        return max(0, self.read - self.stride)

    @property
    def is_served(self) -> bool:
        """Whether kernels exist for so many codes and dimensions."""
        return (
            self.products <= _MOST_PRODUCTS
            and self.dimensions < _MOST_DIMENSIONS
            and self.patches * self.columns < 2**32  # a product with a reciprocal divides exactly
            and self.patches * self.dimensions < 2**31  # places of values are whole numbers of 32 bits
        )

    @property
    def largest(self) -> float:
        """No value of a noisy patch, less ½, is larger in size."""
        return 0.5 + LARGEST_NORMAL * max(self.recipe.sigma, self.recipe.tau)

    @property
    def doubt(self) -> float:
        """Rounding errors of half a squared distance are smaller."""
        return _ROUNDING * (1 + self.dimensions * self.largest**2 / 2)

    @property
    def bias(self) -> float:
        """Added to such distances, so that none is below zero."""
        return 8 * self.doubt

    @property
    def limit(self) -> int:
        """So many patches may change their cluster when k-means stops."""
        return math.floor(self.recipe.tolerance * self.patches)

    def scale(self, count: int) -> float:
        """A power of two by which so many values, and sizes, add up to less than 2^31 as whole numbers."""
        return 2.0 ** math.floor(30 - math.log2(count * max(1.0, self.largest)))

    def constants(self) -> dict[str, int]:
        """What the compiler is told."""
        return {
            "CHANNELS": self.channels, "SIZE": self.recipe.grid.size, "SLIDING": int(self.is_sliding),
            "TILES": self.tiles,
        }  # fmt: skip

    def cut(self) -> Cut:
        """How the images are cut."""
        reciprocal = -(-(2**32) // self.columns) % 2**32
        return Cut(self.height, self.width, self.rows, self.columns, reciprocal)


@lru_cache(maxsize=64)
def keys(seed: int) -> "ctypes.Array[ctypes.c_uint32]":
    """Of a seed."""
    words = zip((seed & WORD, seed >> 32), KEY_STEPS, strict=True)
    return Keys(*((word + number * step) & WORD for word, step in words for number in range(ROUNDS)))
