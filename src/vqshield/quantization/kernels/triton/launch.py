"""How the Triton kernels are launched: one program per image for small images, strips for large ones."""

import math
from functools import cached_property

import torch
from torch import Tensor

from vqshield.quantization.kernels.base import Recipe
from vqshield.quantization.kernels.cuda.strips import Strips
from vqshield.quantization.kernels.triton import selective, small, strips, tiles, workspace
from vqshield.quantization.kernels.triton.workspace import (
    LABELS,
    MANY_ROUNDS,
    PIXELS,
    ROUNDS,
    ROWS,
    START,
    STATES,
    STRIP_ROUNDS,
    STRIP_START,
    TILES,
    Sizes,
    Workspace,
    interpreting,
    power_of_two,
)
from vqshield.quantization.noise import Draw, Stage
from vqshield.quantization.patches import Sliding

_IMAGES = 8  # for which one program of the patches kernel draws random words
_RUNS = 64  # into which the resident start cuts an image's patches


class Launch:
    """The launches for a batch of images (B, q, h, w), in a workspace that may be larger.

    strips: the CUDA kernels that find codebooks and labels instead, where there are any.
    """

    def __init__(
        self,
        images: Tensor,
        draw: Draw,
        recipe: Recipe,
        codes: int,
        space: Workspace,
        strips: Strips | None,
    ) -> None:
        self.strips = strips
        self.images, self.draw, self.recipe, self.codes = images, draw, recipe, codes
        self.streams = draw.streams
        self.batch, self.channels, self.height, self.width = images.shape
        self.rows, self.columns = recipe.grid.shape(self.height, self.width)
        self.n, self.dimensions = self.rows * self.columns, self.channels * recipe.grid.size**2
        self.sizes = Sizes.of(self.n, codes, self.dimensions)
        self.space = space[: self.batch]
        self.count = -(-self.n // workspace.STRIP)
        # Strips whose sums are added up at once, as many as registers hold.
        self.group = max(1, 2**13 // (self.sizes.codes * self.sizes.dimensions))
        self.padding = {"KP": self.sizes.codes, "DP": self.sizes.dimensions}
        rows = max(16, min(ROWS, workspace.TILE // self.sizes.dimensions))
        self.tile = {"D": self.dimensions, "RB": rows, "QB": power_of_two(rows * self.dimensions // 4)}
        self.shape = {"S": recipe.grid.size, "SLIDING": isinstance(recipe.grid, Sliding)}

    @cached_property
    def key(self) -> Tensor:
        """The seed, as a signed number."""
        seed = self.draw.seed - 2**64 if self.draw.seed >= 2**63 else self.draw.seed
        # Not torch.tensor: its copy would wait for the device.
        return torch.full((1,), seed, dtype=torch.int64, device=self.images.device)

    @property
    def centres(self) -> Tensor:
        """The codebooks (B, k, d), less the 0.5 that the workspace's values are less."""
        return self.space.centres[:, : self.codes, : self.dimensions]

    def fit(self) -> None:
        """The codebooks, into the workspace."""
        if self.strips is not None:
            self.strips.fit(self.images, self.draw, self.centres)
            return
        self._patches(Stage.CODEBOOK, self.recipe.sigma)
        self._start()
        self._rounds()
        # As a caller of codebook gets them: quantizing with those must be the same, bit for bit.
        self.centres.add_(0.5).sub_(0.5)

    def quantize(self, output: Tensor) -> None:
        """The quantized images, from the codebooks in the workspace."""
        self._label()
        self._rebuild(output)

    def _label(self) -> None:
        if self.strips is not None:
            similarities = self.space.floats
            self.strips.label(self.images, self.draw, self.centres, self.space.labels, similarities)
            return
        space, place, strip = self.space, (self.columns, self.height, self.width), workspace.LABEL_STRIP
        tiles.label_kernel[(-(-self.n // strip), self.batch)](
            self.images, space.labels, space.floats, space.centres, self.streams, self.key, self.n,
            self.sizes.rows, *place, self.recipe.tau, self.recipe.beta, STAGE=int(Stage.ASSIGNMENT),
            CHANNELS=self.channels, NOISY=self.recipe.weights_from == "noisy", K=self.codes,
            STRIP=strip, **self.tile, **self.shape, **self.padding, **compiled(LABELS),
        )  # fmt: skip

    def _rebuild(self, output: Tensor) -> None:
        space, place = self.space, (self.columns, self.height, self.width)
        strips.rebuild_kernel[(-(-self.height * self.width // PIXELS), self.batch)](
            output, space.labels, space.floats, space.centres, self.sizes.rows, self.rows, *place,
            CHANNELS=self.channels, CP=power_of_two(self.channels), PB=PIXELS, **self.shape, **self.padding,
        )  # fmt: skip

    def _patches(self, stage: Stage, scale: float) -> None:
        written = -(-self.n // ROWS) * ROWS  # whole blocks of the kernels that read them
        tiles.patches_kernel[(written // self.tile["RB"], -(-self.batch // _IMAGES))](
            self.images, self.space.x, self.streams, self.key, self.batch, self.n, self.sizes.rows, scale,
            self.columns, self.height, self.width, STAGE=int(stage), CHANNELS=self.channels,
            DP=self.sizes.dimensions, STEPS=_IMAGES, **self.tile, **self.shape, **compiled(TILES),
        )  # fmt: skip

    def _start(self) -> None:
        space, numbers, images = self.space, (self.n, self.sizes.rows), (self.streams, self.key)
        if self.recipe.init == "random":
            strips.random_kernel[(self.batch,)](
                space.x, space.centres, *images, *numbers, K=self.codes, **self.padding
            )
        elif self.n > workspace.SMALL:
            self._start_by_strips()
        elif power_of_two(self.n) * self.sizes.dimensions <= workspace.RESIDENT:
            runs = min(_RUNS, power_of_two(self.n))
            selective.resident_start_kernel[(self.batch,)](
                space.x, space.steps.view(torch.int32), space.centres, *images, *numbers,
                K=self.codes, RUNS=runs, RUN=power_of_two(self.n) // runs, **self.padding, **compiled(START),
            )  # fmt: skip
        else:
            selective.small_start_kernel[(self.batch,)](
                space.x, space.floats, space.labels, space.steps, space.lists[0], space.centres, *images,
                *numbers, K=self.codes, NB=ROWS, CB=STATES, **self.padding, **compiled(START),
            )  # fmt: skip

    def _start_by_strips(self) -> None:
        space, strip = self.space, workspace.START_STRIP
        count = -(-self.n // strip)
        numbers = self.n, self.sizes.rows, count
        partial = torch.empty(self.batch, count, dtype=torch.float64, device=space.x.device)
        for number in range(self.codes):
            if number:
                selective.strip_near_kernel[(count, self.batch)](
                    space.x, space.floats, space.labels, space.steps, space.lists[0], partial, space.centres,
                    number, *numbers, NB=ROWS, CB=STATES, STRIP=strip, **self.padding,
                    **compiled(STRIP_START),
                )  # fmt: skip
            strips.pick_kernel[(self.batch,)](
                space.x, space.floats, partial, space.steps, space.centres, self.streams, self.key, number,
                *numbers, CB=1024, SB=min(1024, power_of_two(count)), STRIP=strip, **self.padding,
            )  # fmt: skip

    def _rounds(self) -> None:
        is_large = self.n > workspace.SMALL
        few = max(self.sizes.codes, self.sizes.dimensions) <= workspace.FEW
        if self.sizes.codes <= workspace.MOST_PACKED and (is_large or not few):
            (self._selective_rounds_by_strips if is_large else self._selective_rounds)()
        elif is_large:
            self._rounds_by_strips()
        else:
            rounds(
                self.space, self.sizes, self.n, self.codes, self.dimensions,
                iterations=self.recipe.iterations, tolerance=self.recipe.tolerance,
            )  # fmt: skip

    def _selective_rounds(self) -> None:
        space, (rows, options) = self.space, selective_shape(self.sizes)
        selective.small_rounds_kernel[(self.batch,)](
            space.x, space.labels, space.squares, space.lists[0], space.lists[1],
            space.centres, space.sums, space.steps, self.n, self.sizes.rows,
            math.floor(self.recipe.tolerance * self.n), self.recipe.iterations,
            K=self.codes, D=self.dimensions, RB=rows, CB=math.gcd(self.sizes.rows, STATES), **self.padding,
            **compiled(options),
        )  # fmt: skip

    def _selective_rounds_by_strips(self) -> None:
        space, (rows, options) = self.space, selective_shape(self.sizes)
        flows = space.centres.new_empty(self.batch, self.count, self.sizes.codes, self.sizes.dimensions)
        changed = space.labels.new_empty(self.batch, self.count)
        active = space.labels.new_ones(self.batch)
        limit = math.floor(self.recipe.tolerance * self.n)
        space.sums.zero_()
        for number in range(self.recipe.iterations):
            selective.strip_rounds_kernel[(self.count, self.batch)](
                space.x, space.labels, space.squares, space.lists[0], space.lists[1],
                space.centres, flows, space.steps, changed, active, self.n, self.sizes.rows, self.count,
                int(number == 0), K=self.codes, D=self.dimensions, RB=rows,
                CB=math.gcd(self.sizes.rows, workspace.STRIP, STATES), STRIP=workspace.STRIP, **self.padding,
                **compiled(options),
            )  # fmt: skip
            selective.strip_means_kernel[(self.batch,)](
                space.centres, space.sums, flows, space.steps, changed, active, self.count, limit,
                int(number == 0), D=self.dimensions, GROUP=self.group, **self.padding,
            )  # fmt: skip

    def _rounds_by_strips(self) -> None:
        space = self.space
        sums = space.centres.new_empty(self.batch, self.count, self.sizes.codes, self.sizes.dimensions)
        changed = space.labels.new_empty(self.batch, self.count)
        active = space.labels.new_ones(self.batch)
        limit = math.floor(self.recipe.tolerance * self.n)
        for number in range(self.recipe.iterations):
            strips.round_kernel[(self.count, self.batch)](
                space.x, space.labels, space.centres, sums, changed, active,
                self.n, self.sizes.rows, self.count, K=self.codes, D=self.dimensions, RB=ROWS,
                STRIP=workspace.STRIP, **self.padding, **compiled(STRIP_ROUNDS),
            )  # fmt: skip
            strips.means_kernel[(self.batch,)](
                space.centres, sums, changed, active, self.count, limit, int(number == 0),
                D=self.dimensions, **self.padding,
            )  # fmt: skip


def rounds(
    space: Workspace, sizes: Sizes, n: int, codes: int, dimensions: int, *, iterations: int, tolerance: float
) -> None:
    """Lloyd's algorithm with one program per image, on the centres in the workspace: values of any scale."""
    small.rounds_kernel[(len(space.x),)](
        space.x, space.labels, space.centres, n, sizes.rows, math.floor(tolerance * n), iterations,
        K=codes, D=dimensions, KP=sizes.codes, DP=sizes.dimensions, RB=ROWS,
        **compiled(ROUNDS if sizes.codes <= workspace.FEW else MANY_ROUNDS),
    )  # fmt: skip


def selective_shape(sizes: Sizes) -> tuple[int, dict[str, int]]:
    """Patches a block in selective rounds, and how they are compiled.

    More codes or dimensions want more warps and fewer patches, and registers as many as there are.
    """
    if max(sizes.codes, sizes.dimensions) <= workspace.FEW:
        return ROWS, {"num_warps": 2, "maxnreg": 128}
    return max(16, min(ROWS, 2**12 // sizes.codes)), {"num_warps": 8 if sizes.codes > 128 else 4}


def compiled(options: dict[str, int]) -> dict[str, int]:
    """How a kernel is compiled, where it is."""
    return {} if interpreting() else options
