"""The constants and arguments of resident.cu and strips.cu for one shape of images, and their limits."""

import ctypes
import math
from functools import lru_cache

from vqshield.quantization.kernels.base import Recipe, Shape
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

    def __init__(self, recipe: Recipe, codes: int, channels: int, height: int, width: int) -> None:
        super().__init__(recipe, codes, channels, height, width)
        tiles = -(-codes // 16)  # of 16 codes each
        self.room_for_codes = 16 * tiles
        # Words of a patch that a product reads: 16 a step, half the squared norm among them.
        self.read = 16 * (self.dimensions // 16 + 1)
        # Tiles of 16 codes times steps of 16 dimensions: a lane has their operands in registers.
        self.products = tiles * (self.read // 16)
        # Values of a cluster's sum, its size among them, up to whole quads.
        self.tally = 4 * (self.dimensions // 4 + 1)
        self.stride = 4 * (self.dimensions // 4 + 1 | 1)  # words of a patch: an odd number of quads
        self.behind = max(0, self.read - self.stride)  # words after the last patch that a product reads too
        self.is_served = (  # kernels exist for so many codes and dimensions
            self.products <= _MOST_PRODUCTS
            and self.dimensions < _MOST_DIMENSIONS
            and self.patches * self.columns < 2**32  # a product with a reciprocal divides exactly
            and self.patches * self.dimensions < 2**31  # places of values are whole numbers of 32 bits
        )
        # The largest absolute value of a noisy patch, less ½.
        self.largest = 0.5 + LARGEST_NORMAL * max(recipe.sigma, recipe.tau)
        # Rounding errors of half a squared distance are smaller.
        self.doubt = _ROUNDING * (1 + self.dimensions * self.largest**2 / 2)
        self.limit = math.floor(recipe.tolerance * self.patches)  # k-means stops at so many changed labels
        self.constants = {
            "CHANNELS": channels, "SIZE": recipe.grid.size, "SLIDING": int(self.is_sliding), "TILES": tiles,
        }  # fmt: skip

    def scale(self, count: int) -> float:
        """A power of two: sums of so many values times it, and sizes, are whole numbers below 2^31."""
        return 2.0 ** math.floor(30 - math.log2(count * max(1.0, self.largest)))

    def arguments(self, count: int) -> dict[str, object]:
        """Arguments of both kernels, whose sums have that many patches."""
        recipe, reciprocal = self.recipe, -(-(2**32) // self.columns) % 2**32
        return {
            "sigma": recipe.sigma,
            "tau": recipe.tau,
            "beta": recipe.beta,
            "scale": self.scale(count),
            "doubt": self.doubt,
            "bias": 8 * self.doubt,  # added to such distances, so that none is below zero
            "noisy": recipe.weights_from == "noisy",
            "codes": self.codes,
            "iterations": recipe.iterations,
            "limit": self.limit,
            "cut": Cut(self.height, self.width, self.rows, self.columns, reciprocal),
        }


@lru_cache(maxsize=64)
def keys(seed: int) -> "ctypes.Array[ctypes.c_uint32]":
    """The Philox keys of a seed."""
    words = zip((seed & WORD, seed >> 32), KEY_STEPS, strict=True)
    return Keys(*((word + number * step) & WORD for word, step in words for number in range(ROUNDS)))
