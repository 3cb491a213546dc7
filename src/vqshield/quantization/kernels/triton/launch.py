"""The launches of the Triton kernels, in a workspace: every program takes a strip of an image."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from vqshield.quantization.kernels.base import Recipe, Shape, Wanted
from vqshield.quantization.kernels.cuda.strips import Strips
from vqshield.quantization.kernels.gpu import interpreting
from vqshield.quantization.kernels.triton import quantizer_kernels as kernels
from vqshield.quantization.noise import Draw, Stage

AT_ONCE = 6144  # images a launch: the last programs, which leave a GPU half empty, are few among them
ROWS = 64  # patches a block
WIDE_ROWS = 256  # the workspace holds a multiple of them
STRIP = 2048  # patches of an image that one program takes
START_STRIP = 1024  # and in k-means++
LABEL_STRIP = 1024  # and where patches get their final label
TILE = 2048  # values of the patches that are made at once
PIXELS = 256
STATES = 512  # patches at once where only a number or two of each is read
FEW = 32  # up to so many codes a program of a round has few warps
# Measured on an H200: how many warps a program has. Few, where matrix products wait for each other and other
# programs fill the gaps; many, where one program must get through an image.
ROUNDS = {"num_warps": 4, "num_stages": 3}
MANY_ROUNDS = {"num_warps": 8}  # more codes than FEW need more registers
START = {"num_warps": 2}
TILES = {"num_warps": 4}
LABELS = {"num_warps": 4, "num_stages": 1}
_IMAGES = 8  # for which one program of the patches kernel draws random words


class Sizes(NamedTuple):
    """The workspace's: patches up to whole blocks, codes and dimensions up to powers of two."""

    rows: int
    codes: int
    dimensions: int

    @classmethod
    def of(cls, patches: int, codes: int, dimensions: int) -> "Sizes":
        """With a one after each patch; matrix units want at least 16."""
        whole = -(-patches // WIDE_ROWS) * WIDE_ROWS
        return cls(whole, power_of_two(codes, least=16), power_of_two(dimensions + 1, least=16))

    def bytes(self, *, patches: bool) -> int:
        """Of one image's workspace: with patches, and the partial sums of its strips, or for labels alone."""
        if not patches:
            return 8 * self.rows + 4 * self.codes * self.dimensions
        strips = -(-self.rows // STRIP)
        return self.rows * (4 * self.dimensions + 12) + 4 * (strips + 1) * self.codes * self.dimensions


class Workspace(NamedTuple):
    """Memory of the kernels besides input and output, one share per image."""

    x: Tensor  # (B, 2, rows, dimensions): noisy patches as hi and lo, see parts.py
    floats: Tensor  # (B, rows): distances, later similarities
    labels: Tensor  # (B, rows)
    centres: Tensor  # (B, codes, dimensions)
    listed: Tensor  # (B, rows): patches that a new centre may be nearer to
    gaps: Tensor  # (B, codes): squared distances of a new centre from the others

    @classmethod
    def make(cls, count: int, sizes: Sizes, device: torch.device, *, patches: bool) -> "Workspace":
        """Not filled, except for the centres: the kernel that writes patches also writes the rest of their
        rows, in whole blocks of ROWS. Without patches it cannot find codebooks.
        """
        rows, codes = (sizes.rows, sizes.codes) if patches else (0, 0)
        return cls(
            torch.empty(count, 2, rows, sizes.dimensions, dtype=torch.float16, device=device),
            torch.empty(count, sizes.rows, device=device),
            torch.empty(count, sizes.rows, dtype=torch.int32, device=device),
            torch.zeros(count, sizes.codes, sizes.dimensions, device=device),
            torch.empty(count, rows, dtype=torch.int32, device=device),
            torch.empty(count, codes, device=device),
        )

    @property
    def padding(self) -> dict[str, int]:
        """The codes and dimensions, as kernels are compiled for them."""
        return {"KP": self.centres.shape[1], "DP": self.centres.shape[2]}


def run_in_parts(
    wanted: Wanted, padded: Tensor, centres: Tensor | None, recipe: Recipe, draw: Draw
) -> Tensor:
    """The wanted tensor, from as many images at once as the memory holds the workspace of."""
    codes = recipe.codes if centres is None else centres.shape[1]
    shape, strips = Shape(recipe, codes, *padded.shape[1:]), Strips.of(padded, recipe, codes)
    sizes = Sizes.of(shape.patches, codes, shape.dimensions)
    patches = centres is None and strips is None
    an_image = sizes.bytes(patches=patches) if centres is not None or strips is None else strips.patch_bytes
    most = max(1, min(AT_ONCE, recipe.memory // an_image))
    parts = max(1, -(-len(padded) // most))
    step = max(1, -(-len(padded) // parts))  # all of nearly equal size
    space = Workspace.make(step, sizes, padded.device, patches=patches)
    if wanted == "labels":
        result = torch.empty(len(padded), shape.patches, dtype=torch.int32, device=padded.device)
    elif wanted == "images":
        result = torch.empty_like(padded, dtype=torch.float32, memory_format=torch.contiguous_format)
    else:
        result = torch.empty(len(padded), codes, shape.dimensions, device=padded.device)
    for first in range(0, len(padded), step):
        part = slice(first, first + step)
        launch = Launch(shape, padded[part].float(), draw[part], space, strips)
        launch.run(wanted, None if centres is None else centres[part], result[part])
    return result


class Launch:
    """The launches for a batch of images (B, q, h, w), in a workspace that may be larger.

    strips: the CUDA kernels that find codebooks and labels instead, where there are any.
    """

    def __init__(
        self, shape: Shape, images: Tensor, draw: Draw, space: Workspace, strips: Strips | None
    ) -> None:
        self.shape, self.recipe, self.strips = shape, shape.recipe, strips
        self.images, self.draw, self.key = images.contiguous(), draw, key_of(draw)
        self.batch, self.space = len(images), Workspace._make(tensor[: len(images)] for tensor in space)
        self.row_count = space.labels.shape[1]  # the patches that fit
        self.padding = space.padding
        self.place = shape.columns, shape.height, shape.width
        rows = max(16, min(ROWS, TILE // self.padding["DP"]))
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
            kernels.random_kernel[(self.batch,)](
                self.space.x, self.space.centres, self.draw.streams, self.key, self.shape.patches,
                self.row_count, K=self.shape.codes, **self.padding,
            )  # fmt: skip
        else:
            self._start_apart()
        run_rounds(
            self.space, self.shape.patches, self.shape.codes, self.shape.dimensions,
            iterations=self.recipe.iterations, tolerance=self.recipe.tolerance,
        )  # fmt: skip
        # As a caller of codebook gets them: quantizing with those must be the same, bit for bit.
        self.centres.add_(0.5).sub_(0.5)

    def _label(self) -> None:
        space, strip = self.space, LABEL_STRIP
        if self.strips is not None:
            self.strips.label(self.images, self.draw, self.centres, space.labels, space.floats)
            return
        kernels.label_kernel[(-(-self.shape.patches // strip), self.batch)](
            self.images, space.labels, space.floats, space.centres, self.draw.streams, self.key,
            self.shape.patches, self.row_count, *self.place, self.recipe.tau, self.recipe.beta,
            STAGE=int(Stage.ASSIGNMENT), NOISY=self.recipe.weights_from == "noisy", K=self.shape.codes,
            STRIP=strip, **self.tile, **self.cut, **self.padding, **compiled(LABELS),
        )  # fmt: skip

    def _rebuild(self, output: Tensor) -> None:
        space, shape = self.space, self.shape
        kernels.rebuild_kernel[(-(-shape.height * shape.width // PIXELS), self.batch)](
            output, space.labels, space.floats, space.centres, self.row_count, shape.rows, *self.place,
            CP=power_of_two(shape.channels), PB=PIXELS, **self.cut, **self.padding,
        )  # fmt: skip

    def _patches(self) -> None:
        written = -(-self.shape.patches // ROWS) * ROWS  # whole blocks of the kernels that read them
        kernels.patches_kernel[(written // self.tile["RB"], -(-self.batch // _IMAGES))](
            self.images, self.space.x, self.draw.streams, self.key, self.batch, self.shape.patches,
            self.row_count, self.recipe.sigma, *self.place, STAGE=int(Stage.CODEBOOK),
            DP=self.padding["DP"], STEPS=_IMAGES, **self.tile, **self.cut, **compiled(TILES),
        )  # fmt: skip

    def _start_apart(self) -> None:
        """By k-means++."""
        space, strip = self.space, START_STRIP
        count = -(-self.shape.patches // strip)
        numbers = self.shape.patches, self.row_count, count
        partial = torch.empty(self.batch, count, dtype=torch.float64, device=space.x.device)
        for number in range(self.shape.codes):
            if number:
                kernels.near_kernel[(count, self.batch)](
                    space.x, space.floats, space.labels, space.gaps, space.listed, partial, space.centres,
                    number, *numbers, NB=ROWS, CB=STATES, STRIP=strip, **self.padding, **compiled(START),
                )  # fmt: skip
            kernels.pick_kernel[(self.batch,)](
                space.x, space.floats, partial, space.gaps, space.centres, self.draw.streams, self.key,
                number, *numbers, CB=1024, SB=min(1024, power_of_two(count)), STRIP=strip, **self.padding,
            )  # fmt: skip


def run_rounds(
    space: Workspace, patches: int, codes: int, dimensions: int, *, iterations: int, tolerance: float
) -> None:
    """Lloyd's algorithm on the centres in the workspace: values of any scale."""
    padding, row_count, strip = space.padding, space.labels.shape[1], STRIP
    batch, count = len(space.x), -(-patches // strip)
    sums = space.centres.new_empty(batch, count, padding["KP"], padding["DP"])
    changed = space.labels.new_empty(batch, count)
    active = space.labels.new_ones(batch)
    limit = math.floor(tolerance * patches)
    options = compiled(ROUNDS if padding["KP"] <= FEW else MANY_ROUNDS)
    for number in range(iterations):
        kernels.round_kernel[(count, batch)](
            space.x, space.labels, space.centres, sums, changed, active, patches, row_count, count, K=codes,
            D=dimensions, RB=ROWS, STRIP=strip, **padding, **options,
        )  # fmt: skip
        kernels.means_kernel[(batch,)](
            space.centres, sums, changed, active, count, limit, int(number == 0), D=dimensions, **padding
        )


def compiled(options: dict[str, int]) -> dict[str, int]:
    """How a kernel is compiled; an interpreted one takes no options."""
    return {} if interpreting() else options


def key_of(draw: Draw) -> Tensor:
    """The seed, as a signed number on the device of the streams."""
    seed = draw.seed - 2**64 if draw.seed >= 2**63 else draw.seed
    # Not torch.tensor: its copy would wait for the device.
    return torch.full((1,), seed, dtype=torch.int64, device=draw.streams.device)


def power_of_two(count: int, least: int = 1) -> int:
    """The smallest power of two that is at least count."""
    return max(least, 1 << max(0, count - 1).bit_length())
