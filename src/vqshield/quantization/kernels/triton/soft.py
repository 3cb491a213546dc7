"""The gradient of soft assignment on a GPU: of sum_j softmax_j(−‖p − c_j‖²/T)·c_j in place of every patch p.

The same sums as native/soft.hpp, in float32, without atomics, in strips whose length depends on the image's
shape alone: an image has the same gradient, bit for bit, in every run and in every batch.

Distances are sums of squared differences, never ‖p‖² − 2·p·c + ‖c‖²: a temperature of 0.03 would magnify the
rounding errors. They are computed twice, in mix and in pull: cheaper than keeping the weights (n, k).
"""

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from vqshield.core.errors import InvalidInputError
from vqshield.quantization.kernels.base import Recipe, Shape, check_soft
from vqshield.quantization.kernels.triton import soft_kernels
from vqshield.quantization.kernels.triton.launch import compiled, key_of, power_of_two
from vqshield.quantization.noise import Draw, Stage
from vqshield.quantization.patches import PatchGrid

MOST_VALUES = 2**14
"""Of a codebook, its codes and dimensions raised to powers of two: a program holds them all."""

_AT_ONCE = 2048  # images a launch: enough to fill any GPU, and what is kept of them is soon reused
_COUNTERS = 256  # blocks of four random words that one program of the noise kernel draws
_SHORT, _LONG = 256, 1024  # patches of a strip, in images of at most _FEW patches and in larger ones
_FEW = 4096


@dataclass(frozen=True)
class Tuning:
    """How the kernels are compiled: the fastest for swRD(3, 25) on an H200, see benchmarks/surrogates.py."""

    precision: str = "tf32x3"  # of matrix products: three on the matrix units, nearly float32; or "ieee"
    unroll: int = 3  # components of a patch that are loaded at once for its distances
    mix_rows: int = 64  # patches at once
    pull_rows: int = 32
    mix_warps: int = 2  # of a program
    pull_warps: int = 4
    pixels: int = 128  # at once
    registers: int = 168  # at most, of a thread of the pull kernel, for more programs at once; 0: any number


TUNING = Tuning()


class Book(NamedTuple):
    """Centres less the origin."""

    by_centre: Tensor  # (B, KP, DP)
    by_component: Tensor  # (B, DP, KP)
    sizes: Tensor  # (B, KP): the weight of each after a round of soft k-means


def serves(grid: PatchGrid, channels: int, codes: int) -> bool:
    """Whether codebooks of these patches fit."""
    values = power_of_two(codes, least=16) * power_of_two(channels * grid.size**2 + 1, least=16)
    return values <= MOST_VALUES


def soft_gradient(
    padded: Tensor,
    assigned: Tensor,
    centres: Tensor,
    slopes: Tensor,
    recipe: Recipe,
    draw: Draw,
    *,
    temperature: float,
    means: bool,
    rounds: int = 0,
) -> Tensor:
    """The gradient of the soft surrogate towards the padded images.

    Values are not checked, which would wait for the GPU: nan in the slopes stays visible.

    Args:
        padded, assigned, centres, slopes, recipe, draw, temperature, means: as of Native.soft_gradient.
        rounds: of soft k-means on the clean patches, through which centres move; 0: none, as means says.
    """
    check_soft(padded, assigned, centres, slopes, recipe, draw)
    codes = centres.shape[1]
    if not serves(recipe.grid, padded.shape[1], codes):
        raise InvalidInputError(
            f"centres of shape {tuple(centres.shape)} should have k·d at most {MOST_VALUES}, both raised to "
            "powers of two"
        )
    apart = assigned is not padded
    # Matrix units take 32-bit values from compute capability 8.0 on.
    is_old = padded.is_cuda and torch.cuda.get_device_capability(padded.device) < (8, 0)
    tuning = replace(TUNING, precision="ieee") if is_old else TUNING
    plan = _plan(recipe, codes, *padded.shape[1:], apart, means, rounds, 1 / temperature, tuning)
    step = max(1, min(_AT_ONCE, recipe.memory // plan.bytes))
    found = []
    for first in range(0, len(padded), step):
        part = slice(first, first + step)
        images = _aligned(padded[part])
        seen = _aligned(assigned[part]) if apart else images
        found.append(plan.run(images, seen, _aligned(centres[part]), _aligned(slopes[part]), draw[part]))
    output = found[0] if len(found) == 1 else torch.cat([padded[:0].float(), *found])
    return output.to(padded.dtype)


def _aligned(values: Tensor) -> Tensor:
    """As contiguous float32, aligned to 16 bytes: for other addresses Triton compiles another kernel, with
    another order of sums."""
    plain = values.detach().float().contiguous()
    return plain if plain.data_ptr() % 16 == 0 else plain.clone()


class _Plan(Shape):
    """The launches for images of one shape.

    apart: the assignment sees other images. colder: 1/T.
    """

    def __init__(
        self,
        recipe: Recipe,
        codes: int,
        channels: int,
        height: int,
        width: int,
        apart: bool,
        means: bool,
        rounds: int,
        colder: float,
        tuning: Tuning,
    ) -> None:
        super().__init__(recipe, codes, channels, height, width)
        self.apart, self.means, self.rounds, self.colder, self.tuning = apart, means, rounds, colder, tuning
        self.drawn, self.moving = recipe.tau > 0, means or rounds > 0
        self.kp = kp = power_of_two(codes, least=16)
        self.dp = dp = power_of_two(self.dimensions + 1, least=16)  # the size of a cluster follows its sum
        self.strip = _SHORT if self.patches <= _FEW else _LONG
        self.strips = -(-self.patches // self.strip)
        self.place = self.columns, height, width
        # Constants of the kernels: sizes of codebooks, of kernels over patches, over strips, over pixels.
        self.sizes = {"D": self.dimensions, "KP": kp, "DP": dp}
        self.inner: dict[str, object] = {
            "CHANNELS": channels, "S": recipe.grid.size, "K": codes, **self.sizes, "UNROLL": tuning.unroll,
            "PRECISION": tuning.precision,
        }  # fmt: skip
        self.noisy = {"DRAWN": self.drawn, "NOISY": recipe.weights_from == "noisy"}
        self.in_strips: dict[str, object] = {
            **self.inner, "SLIDING": self.is_sliding, "STRIP": self.strip, "RB": self.block(tuning.pull_rows),
            **self.options(tuning.pull_warps, tuning.registers),
        }  # fmt: skip
        self.outer = {
            "CHANNELS": channels, "CP": power_of_two(channels), "S": recipe.grid.size, "D": self.dimensions,
            "PB": tuning.pixels,
        }  # fmt: skip

    @property
    def bytes(self) -> int:
        """Of one image, not counting input and output."""
        books = 3 + 2 * self.rounds + (self.strips + 2) * self.moving
        values = books * self.kp * (self.dp + 1) + self.patches * self.means
        values += self.patches * self.dimensions * (self.is_sliding + self.drawn)
        if self.is_sliding:
            values += self.patches + self.height * self.width * (self.channels + 2)
        return 4 * values

    def block(self, most: int) -> int:
        """Patches at once: few where there are many centres, for a program holds all distances to them."""
        return max(16, min(most, 4096 // max(self.kp, self.dp)))

    def options(self, warps: int, registers: int = 0) -> dict[str, int]:
        """How a kernel is compiled: with all registers, and more warps, where a program holds much."""
        if max(self.kp, self.dp) >= 128:
            return compiled({"num_warps": max(8, warps)})
        return compiled({"num_warps": warps, **({"maxnreg": registers} if registers else {})})

    def run(self, images: Tensor, assigned: Tensor, centres: Tensor, slopes: Tensor, draw: Draw) -> Tensor:
        """The gradients of some images."""
        batch, n, beta = len(images), self.patches, self.recipe.beta
        pixels = self.height * self.width
        blocks = -(-pixels // self.tuning.pixels), batch

        def floats(*shape: int) -> Tensor:
            return images.new_empty(batch, *shape)

        nothing = floats(0)
        mixed = similarity = blended = largest = scale = partial = moves = nothing
        output, origin = torch.empty_like(images), floats(self.dp)
        by_centre = floats(self.kp, self.dp)
        soft_kernels.prepare_kernel[(batch,)](
            centres, origin, by_centre, CHANNELS=self.channels, SS=self.recipe.grid.size**2, K=self.codes,
            **self.sizes,
        )  # fmt: skip
        # Not by the kernel: Triton 3.6 compiles some sizes of it wrongly if it stores both.
        book = Book(by_centre, by_centre.mT.contiguous(), nothing)
        noise = nothing
        if self.drawn:
            noise, total = floats(self.dimensions, n), n * self.dimensions
            soft_kernels.noise_kernel[(-(-total // (4 * _COUNTERS)), batch)](
                noise, draw.streams.contiguous(), key_of(draw), n, total, self.recipe.tau,
                STAGE=int(Stage.ASSIGNMENT), D=self.dimensions, QB=_COUNTERS,
            )  # fmt: skip
        if self.is_sliding:
            mixed, similarity = floats(self.dimensions, n), floats(n)
            blended, largest, scale = floats(self.channels, pixels), floats(pixels), floats(pixels)
            rows = self.block(self.tuning.mix_rows)
            soft_kernels.mix_kernel[(-(-n // rows), batch)](
                images, assigned, noise, origin, book.by_component, mixed, similarity, n, *self.place,
                self.colder, beta, RB=rows, **self.inner, **self.noisy, **self.options(self.tuning.mix_warps),
            )  # fmt: skip
            soft_kernels.blend_kernel[blocks](
                mixed, similarity, blended, largest, scale, n, self.rows, *self.place, **self.outer
            )
        if self.moving:
            partial = floats(self.strips, self.kp, self.dp)
        labels = torch.empty((batch, n if self.means else 0), dtype=torch.int32, device=images.device)
        books = self._unrolled(images, origin, book, partial)
        soft_kernels.pull_kernel[(self.strips, batch)](
            images, assigned, slopes, noise, origin, book.by_centre, book.by_component, mixed, similarity,
            blended, largest, scale, labels, partial, output, n, self.strips, *self.place, self.colder, beta,
            APART=self.apart or self.drawn, MEANS=self.means, MOVING=self.moving, **self.noisy,
            **self.in_strips,
        )  # fmt: skip
        self._back(images, origin, books, partial, mixed, output)
        if self.means:
            moves = floats(self.kp, self.dp)
            soft_kernels.move_kernel[(batch,)](partial, moves, self.strips, **self.sizes)
        if self.means or self.is_sliding:
            soft_kernels.gather_kernel[blocks](
                mixed, labels, moves, output, n, self.rows, *self.place, SLIDING=self.is_sliding,
                MEANS=self.means, KP=self.kp, DP=self.dp, **self.outer,
            )  # fmt: skip
        return output

    def _unrolled(self, images: Tensor, origin: Tensor, book: Book, partial: Tensor) -> list[Book]:
        """The centres before the first round of soft k-means, and after each."""
        books = [book]
        for _ in range(self.rounds):
            soft_kernels.round_kernel[(self.strips, len(images))](
                images, origin, books[-1].by_component, partial, self.patches, self.strips, *self.place,
                self.colder, **self.in_strips,
            )  # fmt: skip
            sizes = images.new_empty(len(images), self.kp)
            books.append(Book(torch.empty_like(book.by_centre), torch.empty_like(book.by_component), sizes))
            after = books[-1]
            soft_kernels.centres_kernel[(len(images),)](
                partial, after.by_centre, after.by_component, after.sizes, self.strips, **self.sizes
            )
        return books

    def _back(
        self,
        images: Tensor,
        origin: Tensor,
        books: list[Book],
        partial: Tensor,
        mixed: Tensor,
        output: Tensor,
    ) -> None:
        """Backward through those rounds, from the gradient of the last centres that the strips' sums hold."""
        share, across = torch.empty_like(books[0].by_centre), torch.empty_like(books[0].by_component)
        level = images.new_empty(len(images), self.kp)
        for number in range(self.rounds, 0, -1):
            before, after = books[number - 1], books[number]
            soft_kernels.turn_kernel[(len(images),)](
                partial, after.by_centre, after.sizes, share, across, level, self.strips, **self.sizes
            )
            soft_kernels.unroll_kernel[(self.strips, len(images))](
                images, origin, before.by_centre, before.by_component, share, across, level, mixed, partial,
                output, self.patches, self.strips, *self.place, self.colder, **self.in_strips,
            )  # fmt: skip


_plan = lru_cache(maxsize=64)(_Plan)
