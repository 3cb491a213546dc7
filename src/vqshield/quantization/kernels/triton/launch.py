"""How the Triton kernels are launched: every program takes a strip of an image."""

import math
from typing import Any

import torch
from torch import Tensor

from vqshield.quantization.kernels.base import Shape, Wanted
from vqshield.quantization.kernels.cuda.strips import Strips
from vqshield.quantization.kernels.triton import kmeans_kernels, patch_kernels, workspace
from vqshield.quantization.kernels.triton.workspace import (
    LABELS,
    MANY_ROUNDS,
    PIXELS,
    ROUNDS,
    ROWS,
    START,
    STATES,
    TILES,
    Workspace,
    compiled,
    key_of,
    power_of_two,
)
from vqshield.quantization.noise import Draw, Stage

_IMAGES = 8  # for which one program of the patches kernel draws random words


class Launch:
    """The launches for a batch of images (B, q, h, w), in a workspace that may be larger.

    strips: the CUDA kernels that find codebooks and labels instead, where there are any.
    """

    def __init__(
        self, shape: Shape, images: Tensor, draw: Draw, space: Workspace, strips: Strips | None
    ) -> None:
        self.shape, self.recipe, self.strips = shape, shape.recipe, strips
        self.images, self.draw, self.key = images.contiguous(), draw, key_of(draw)
        self.batch, self.space = len(images), space[: len(images)]
        self.row_count = space.labels.shape[1]  # the room for patches
        self.padding = padding_of(space)
        self.place = shape.columns, shape.height, shape.width
        rows = max(16, min(ROWS, workspace.TILE // self.padding["DP"]))
        self.tile = {
            "D": shape.dimensions, "RB": rows, "QB": power_of_two(rows * shape.dimensions // 4),
        }  # fmt: skip
        self.cut = {"CHANNELS": shape.channels, "S": self.recipe.grid.size, "SLIDING": shape.is_sliding}

    @property
    def centres(self) -> Tensor:
        """The codebooks (B, k, d), less the 0.5 that the workspace's values are less."""
        return self.space.centres[:, : self.shape.codes, : self.shape.dimensions]

    def run(self, wanted: Wanted, centres: Tensor | None, target: Tensor) -> None:
        """Write what is wanted, of given centres or those that k-means finds."""
        if centres is None:
            self._fit()
        else:
            self.centres.copy_(centres - 0.5)
        if wanted == "centres":
            target.copy_(self.centres + 0.5)
            return
        self._label()
        if wanted == "labels":
            target.copy_(self.space.labels[:, : self.shape.patches])
        else:
            self._rebuild(target)

    def _fit(self) -> None:
        """The codebooks, into the workspace."""
        if self.strips is not None:
            self.strips.fit(self.images, self.draw, self.centres)
            return
        self._patches()
        if self.recipe.init == "random":
            self._start_at_random()
        else:
            self._start_apart()
        run_rounds(
            self.space, self.shape.patches, self.shape.codes, self.shape.dimensions,
            iterations=self.recipe.iterations, tolerance=self.recipe.tolerance,
        )  # fmt: skip
        # As a caller of codebook gets them: quantizing with those must be the same, bit for bit.
        self.centres.add_(0.5).sub_(0.5)

    def _label(self) -> None:
        space, strip = self.space, workspace.LABEL_STRIP
        if self.strips is not None:
            self.strips.label(self.images, self.draw, self.centres, space.labels, space.floats)
            return
        patch_kernels.label_kernel[(-(-self.shape.patches // strip), self.batch)](
            self.images, space.labels, space.floats, space.centres, self.draw.streams, self.key,
            self.shape.patches, self.row_count, *self.place, self.recipe.tau, self.recipe.beta,
            STAGE=int(Stage.ASSIGNMENT), NOISY=self.recipe.weights_from == "noisy", K=self.shape.codes,
            STRIP=strip, **self.tile, **self.cut, **self.padding, **compiled(LABELS),
        )  # fmt: skip

    def _rebuild(self, output: Tensor) -> None:
        space, shape = self.space, self.shape
        patch_kernels.rebuild_kernel[(-(-shape.height * shape.width // PIXELS), self.batch)](
            output, space.labels, space.floats, space.centres, self.row_count, shape.rows, *self.place,
            CP=power_of_two(shape.channels), PB=PIXELS, **self.cut, **self.padding,
        )  # fmt: skip

    def _patches(self) -> None:
        written = -(-self.shape.patches // ROWS) * ROWS  # whole blocks of the kernels that read them
        patch_kernels.patches_kernel[(written // self.tile["RB"], -(-self.batch // _IMAGES))](
            self.images, self.space.x, self.draw.streams, self.key, self.batch, self.shape.patches,
            self.row_count, self.recipe.sigma, *self.place, STAGE=int(Stage.CODEBOOK),
            DP=self.padding["DP"], STEPS=_IMAGES, **self.tile, **self.cut, **compiled(TILES),
        )  # fmt: skip

    def _start_at_random(self) -> None:
        kmeans_kernels.random_kernel[(self.batch,)](
            self.space.x, self.space.centres, self.draw.streams, self.key, self.shape.patches,
            self.row_count, K=self.shape.codes, **self.padding,
        )  # fmt: skip

    def _start_apart(self) -> None:
        """By k-means++."""
        space, strip = self.space, workspace.START_STRIP
        count = -(-self.shape.patches // strip)
        numbers = self.shape.patches, self.row_count, count
        partial = torch.empty(self.batch, count, dtype=torch.float64, device=space.x.device)
        for number in range(self.shape.codes):
            if number:
                kmeans_kernels.near_kernel[(count, self.batch)](
                    space.x, space.floats, space.labels, space.gaps, space.listed, partial, space.centres,
                    number, *numbers, NB=ROWS, CB=STATES, STRIP=strip, **self.padding, **compiled(START),
                )  # fmt: skip
            kmeans_kernels.pick_kernel[(self.batch,)](
                space.x, space.floats, partial, space.gaps, space.centres, self.draw.streams, self.key,
                number, *numbers, CB=1024, SB=min(1024, power_of_two(count)), STRIP=strip, **self.padding,
            )  # fmt: skip


def run_rounds(
    space: Workspace, patches: int, codes: int, dimensions: int, *, iterations: int, tolerance: float
) -> None:
    """Lloyd's algorithm on the centres in the workspace: values of any scale."""
    padding, row_count, strip = padding_of(space), space.labels.shape[1], workspace.STRIP
    batch, count = len(space.x), -(-patches // strip)
    sums = space.centres.new_empty(batch, count, padding["KP"], padding["DP"])
    changed = space.labels.new_empty(batch, count)
    active = space.labels.new_ones(batch)
    limit = math.floor(tolerance * patches)
    options = compiled(ROUNDS if padding["KP"] <= workspace.FEW else MANY_ROUNDS)
    for number in range(iterations):
        kmeans_kernels.round_kernel[(count, batch)](
            space.x, space.labels, space.centres, sums, changed, active, patches, row_count, count, K=codes,
            D=dimensions, RB=ROWS, STRIP=strip, **padding, **options,
        )  # fmt: skip
        kmeans_kernels.means_kernel[(batch,)](
            space.centres, sums, changed, active, count, limit, int(number == 0), D=dimensions, **padding
        )


def padding_of(space: Workspace) -> dict[str, Any]:
    """The codes and dimensions of a workspace, as kernels are compiled for them."""
    return {"KP": space.centres.shape[1], "DP": space.centres.shape[2]}
