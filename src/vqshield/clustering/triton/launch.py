"""How the Triton kernels are launched: one program per image for small images, strips for large ones."""

import math

import torch
from torch import Tensor

from vqshield.clustering.base import Recipe
from vqshield.clustering.triton import small, strips, workspace
from vqshield.clustering.triton.workspace import (
    COUNTERS,
    PIXELS,
    PLUS_PLUS,
    ROUNDS,
    ROWS,
    STRIP_ROUNDS,
    Sizes,
    Workspace,
    interpreting,
    power_of_two,
)
from vqshield.noise import Stage
from vqshield.patches import Sliding

_STEPS = 8  # of random words that one program of the patches kernel draws


class Launch:
    """The launches for a batch of images (B, q, h, w), in a workspace that may be larger."""

    def __init__(
        self, images: Tensor, streams: Tensor, key: Tensor, recipe: Recipe, codes: int, space: Workspace
    ) -> None:
        self.images, self.streams, self.key, self.recipe, self.codes = images, streams, key, recipe, codes
        self.batch, self.channels, self.height, self.width = images.shape
        self.rows, self.columns = recipe.grid.shape(self.height, self.width)
        self.n, self.dimensions = self.rows * self.columns, self.channels * recipe.grid.size**2
        self.sizes = Sizes.of(self.n, codes, self.dimensions)
        self.space = space[: self.batch]
        self.count = -(-self.n // workspace.STRIP)
        self.padding = {"KP": self.sizes.codes, "DP": self.sizes.dimensions}
        self.shape = {"S": recipe.grid.size, "SLIDING": isinstance(recipe.grid, Sliding)}

    @property
    def centres(self) -> Tensor:
        """The codebooks (B, k, d), less the 0.5 that the workspace's values are less."""
        return self.space.centres[:, : self.codes, : self.dimensions]

    def fit(self) -> None:
        """The codebooks, into the workspace."""
        self._patches(Stage.CODEBOOK, self.recipe.sigma)
        self._start()
        if self.n <= workspace.SMALL:
            rounds(
                self.space, self.sizes, self.n, self.codes, self.dimensions,
                iterations=self.recipe.iterations, tolerance=self.recipe.tolerance,
            )  # fmt: skip
        else:
            self._rounds_by_strips()
        # As a caller of codebook gets them: quantizing with those must be the same, bit for bit.
        self.centres.add_(0.5).sub_(0.5)

    def quantize(self, output: Tensor) -> None:
        """The quantized images, from the codebooks in the workspace."""
        self._patches(Stage.ASSIGNMENT, self.recipe.tau)
        space, place = self.space, (self.columns, self.height, self.width)
        strips.label_kernel[(self.count, self.batch)](
            self.images, space.x, space.labels, space.floats, space.centres, self.n, self.sizes.rows, *place,
            self.recipe.beta, CHANNELS=self.channels, NOISY=self.recipe.weights_from == "noisy",
            K=self.codes, D=self.dimensions, RB=ROWS, STRIP=workspace.STRIP, **self.shape, **self.padding,
        )  # fmt: skip
        strips.rebuild_kernel[(-(-self.height * self.width // PIXELS), self.batch)](
            output, space.labels, space.floats, space.centres, self.sizes.rows, self.rows, *place,
            CHANNELS=self.channels, CP=power_of_two(self.channels), PB=PIXELS, **self.shape, **self.padding,
        )  # fmt: skip

    def _patches(self, stage: Stage, scale: float) -> None:
        total = self.n * self.dimensions
        strips.patches_kernel[(-(-total // (4 * COUNTERS * _STEPS)), self.batch)](
            self.images, self.space.x, self.streams, self.key, total, self.sizes.rows, scale,
            self.columns, self.height, self.width, STAGE=int(stage), CHANNELS=self.channels,
            D=self.dimensions, DP=self.sizes.dimensions, QB=COUNTERS, STEPS=_STEPS, **self.shape,
        )  # fmt: skip

    def _start(self) -> None:
        space, numbers = self.space, (self.n, self.sizes.rows, self.count)
        if self.recipe.init == "random":
            strips.random_kernel[(self.batch,)](
                space.x, space.centres, self.streams, self.key, *numbers[:2], K=self.codes, **self.padding
            )
        elif self.n <= workspace.SMALL:
            small.plus_plus_kernel[(self.batch,)](
                space.x, space.floats, space.centres, self.streams, self.key, *numbers[:2],
                K=self.codes, NB=workspace.WIDE_ROWS, CB=1024, **self.padding, **compiled(PLUS_PLUS),
            )  # fmt: skip
        else:
            self._start_by_strips()

    def _start_by_strips(self) -> None:
        space, numbers = self.space, (self.n, self.sizes.rows, self.count)
        partial = torch.empty(self.batch, self.count, dtype=torch.float64, device=space.x.device)
        for number in range(self.codes):
            if number:
                strips.near_kernel[(self.count, self.batch)](
                    space.x, space.floats, partial, space.centres, number, *numbers,
                    NB=workspace.WIDE_ROWS, STRIP=workspace.STRIP, **self.padding,
                )  # fmt: skip
            strips.pick_kernel[(self.batch,)](
                space.x, space.floats, partial, space.centres, self.streams, self.key, number, *numbers,
                CB=1024, STRIP=workspace.STRIP, **self.padding,
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
    """Lloyd's algorithm with one program per image, on the centres in the workspace."""
    small.rounds_kernel[(len(space.x),)](
        space.x, space.labels, space.centres, n, sizes.rows, math.floor(tolerance * n), iterations,
        K=codes, D=dimensions, KP=sizes.codes, DP=sizes.dimensions, RB=ROWS, **compiled(ROUNDS),
    )  # fmt: skip


def compiled(options: dict[str, int]) -> dict[str, int]:
    """How a kernel is compiled, where it is."""
    return {} if interpreting() else options
