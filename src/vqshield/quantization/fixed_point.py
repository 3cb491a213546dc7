"""Exact arithmetic: patches and centres are kept on a grid so fine that it does not matter, and distances
and sums are then exact.

Float sums depend on their order, and the order that a matrix product uses depends on the size of the batch,
on the thread count and on the device; a sum that moves by one bit can move a patch to another centre. So
noisy patches and centres are rounded to multiples of 2^-bits, with bits so chosen that every inner product,
squared distance and cluster sum is a whole number of 2^-2bits below 2^53, which float64 holds exactly.
No order can change an exact sum: an image's result is the same alone and in any batch, ties are true ties,
and sums may be gathered in whatever order is fastest. With the default noise and windows of up to 3×3 colour
pixels bits is 23, float32's own resolution just below 2.
"""

import math
from dataclasses import dataclass

from torch import Tensor

_EXACT = 53  # float64 holds every integer up to 2^53
_FLOAT32 = 23  # values below 2 on a grid of 2^-23 are float32 numbers: nothing is lost in the output


@dataclass(frozen=True)
class FixedPoint:
    """A grid of multiples of 2^-bits for vectors of d values between 1 − bound and bound."""

    bits: int
    dimensions: int
    bound: float

    @classmethod
    def fitting(cls, dimensions: int, bound: float) -> "FixedPoint":
        """The finest grid on which squared distances of such vectors are exact, at most float32's."""
        bits = (_EXACT - math.ceil(math.log2(cls(0, dimensions, bound).largest))) // 2
        return cls(min(_FLOAT32, bits), dimensions, bound)

    @property
    def largest(self) -> float:
        """No squared distance, and no ‖c‖² − 2·p·c on the way to one, is larger.

        Noise reaches as far below 0 as above 1, so the values lie in [1 − bound, bound].
        """
        return self.dimensions * max(3 * self.bound**2, (2 * self.bound - 1) ** 2)

    def round(self, values: Tensor) -> Tensor:
        """Centres on the grid (in float64): the nearest points, half-way values to the even one."""
        return values.double().mul(2.0**self.bits).round_().mul_(2.0**-self.bits)

    def round_patches(self, values: Tensor) -> Tensor:
        """Patches on the grid (in float64): the nearest points, half-way values to the upper one.

        The CPU kernel adds pixels and noise as integers and shifts, which rounds so. It matters without noise
        alone, where float32 pixels above ½ often lie half-way: a tie between centres must be one everywhere.
        """
        return values.double().mul(2.0**self.bits).add_(0.5).floor_().mul_(2.0**-self.bits)

    def summable(self, distances: Tensor, count: int) -> Tensor:
        """Squared distances as whole numbers so scaled that any count of them add up exactly."""
        return distances.mul(2.0 ** (_EXACT - math.ceil(math.log2(count * self.largest)))).long()
