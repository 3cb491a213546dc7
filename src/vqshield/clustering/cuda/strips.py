"""k-means and labels for large images, by strips.cu: which ones, and how its kernels are launched."""

import ctypes
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from vqshield.clustering.base import Recipe
from vqshield.clustering.cuda import program
from vqshield.clustering.cuda.shapes import Cut, Keys, Shape, keys
from vqshield.noise import Draw

WARPS = 8  # of a block
STRIP = 2048  # patches that one block takes
_BATCH = 256  # patches that are made at once
_FEW_PRODUCTS = 6  # whose operands leave registers for a second block
_CACHE = 14  # percent of a multiprocessor's memory are shared then, the rest is cache
_MOST_CODES = 255  # whose numbers fit into a byte


class _Given(ctypes.Structure):
    """As in strips.cu; what a launch does not need stays empty."""

    _fields_ = (
        *(
            (name, ctypes.c_void_p)
            for name in ("images", "streams", "rows", "near", "owners", "states", "totals")
        ),
        *(
            (name, ctypes.c_void_p)
            for name in ("centres", "gaps", "factors", "norms", "steps", "sums", "moved")
        ),
        *((name, ctypes.c_void_p) for name in ("active", "codebooks")),
        *((name, ctypes.c_longlong) for name in ("image_stride", "centre_stride")),
        *((name, ctypes.c_void_p) for name in ("labels", "similarities")),
        ("label_stride", ctypes.c_longlong),
        *(
            (name, ctypes.c_float)
            for name in ("sigma", "tau", "beta", "scale", "near_scale", "doubt", "bias")
        ),
        *((name, ctypes.c_int) for name in ("codes", "limit", "strips", "noisy", "number")),
        ("cut", Cut),
        ("keys", Keys),
    )


@dataclass(frozen=True)
class Strips:
    """Codebooks and labels of images of one shape: a block of threads takes a strip of an image's patches."""

    shape: Shape

    @classmethod
    def of(cls, padded: Tensor, recipe: Recipe, codes: int) -> "Strips | None":
        """What serves these images, if anything does."""
        found = cls(Shape(recipe, codes, *padded.shape[1:]))
        return found if found._serves(padded.device) else None

    @property
    def count(self) -> int:
        """Strips of an image."""
        return -(-self.shape.patches // STRIP)

    @property
    def bytes(self) -> int:
        """Of global memory that one image takes, roughly."""
        shape = self.shape
        each = self.count * STRIP * (4 * shape.stride + 9)
        return each + shape.room_for_codes * (4 * shape.read + 12 * shape.tally + 12)

    def fit(self, images: Tensor, draw: Draw, centres: Tensor) -> None:
        """The codebooks less ½, of float32 images (B, q, h, w), into centres (B, k, d) of any strides."""
        shape, recipe, batch = self.shape, self.shape.recipe, len(images)
        codes, patches = shape.room_for_codes, self.count * STRIP
        # Products read a little behind the last patch of the last image.
        rows = torch.empty(
            batch * patches * shape.stride + shape.behind, dtype=torch.int32, device=images.device
        )
        rows[len(rows) - shape.behind :].zero_()

        def made(*size: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.empty(batch, *size, dtype=dtype, device=images.device)

        farthest = shape.dimensions * (2 * shape.largest) ** 2
        launch = _Launch(
            self, images, draw,
            rows=rows,
            near=made(patches),
            owners=made(patches, dtype=torch.uint8),
            states=made(patches, dtype=torch.int32),
            totals=made(self.count, dtype=torch.int64),
            centres=made(codes, shape.tally),
            gaps=made(codes),
            factors=made(codes, shape.read, dtype=torch.int32),
            norms=made(codes),
            steps=made(codes),
            sums=made(codes, shape.tally, dtype=torch.int64).zero_(),
            moved=made(dtype=torch.int32).zero_(),
            active=made(dtype=torch.int32).fill_(1),
            codebooks=centres,
        )  # fmt: skip
        given = launch.given
        given.image_stride, given.centre_stride = centres.stride(0), centres.stride(1)
        given.scale, given.near_scale = shape.scale(STRIP), 2.0 ** math.floor(31 - math.log2(farthest))
        lists, scratch = 2 * STRIP, 8 * (WARPS + 2)
        launch("patches_kernel", self._batches, batch, shared=self._batch_bytes)
        if recipe.init == "kmeans++":
            launch("pick_kernel", batch, shared=scratch, divided=_CACHE)
            for given.number in range(1, shape.codes):
                launch("near_kernel", self.count, batch, shared=8 * WARPS + 4 * codes + lists, divided=_CACHE)
                launch("pick_kernel", batch, shared=scratch, divided=_CACHE)
        else:
            launch("sample_kernel", batch, shared=4 * codes)
        launch("prepare_kernel", batch)
        for given.number in range(recipe.iterations):
            launch("round_kernel", self.count, batch, shared=self._round_bytes)
            launch("update_kernel", batch)

    def label(
        self, images: Tensor, draw: Draw, centres: Tensor, labels: Tensor, similarities: Tensor
    ) -> None:
        """Which of the centres (B, k, d), less ½, take the place of patches, and of sliding windows how
        similar they are: into (B, at least n) tensors, int32 and float32, of equal strides.
        """
        shape, batch = self.shape, len(images)
        codes = shape.room_for_codes
        padded = images.new_zeros(batch, codes, shape.tally)
        padded[:, : shape.codes, : shape.dimensions] = centres
        launch = _Launch(
            self, images, draw,
            centres=padded,
            factors=torch.empty(batch, codes, shape.read, dtype=torch.int32, device=images.device),
            norms=images.new_empty(batch, codes),
            labels=labels,
            similarities=similarities,
        )  # fmt: skip
        launch.given.label_stride = labels.stride(0)
        launch("prepare_kernel", batch)
        shared = self._batch_bytes + 4 * shape.codes * shape.tally
        launch("label_kernel", self._batches, batch, shared=shared)

    @property
    def _batches(self) -> int:
        return -(-self.shape.patches // _BATCH)

    @property
    def _batch_bytes(self) -> int:
        """Of shared memory, for patches that are made at once."""
        return 4 * (_BATCH * self.shape.stride + self.shape.behind + self.shape.dimensions)

    @property
    def _round_bytes(self) -> int:
        """Of shared memory, for a round: patches on their way, sums, steps, lists."""
        shape = self.shape
        fetched = 2 * (32 * shape.stride + shape.behind)
        return 4 * (WARPS * fetched + shape.room_for_codes * (shape.tally + 1)) + 2 * STRIP

    def _serves(self, device: torch.device) -> bool:
        needed = max(self._round_bytes, self._batch_bytes + 4 * self.shape.codes * self.shape.tally)
        return (
            self.shape.is_served
            and self.shape.codes <= _MOST_CODES
            and program.can_run(device)
            and needed <= program.most_shared(device)
        )


class _Launch:
    """Launches on a batch of images, with one argument; it holds the tensors that the argument points to."""

    def __init__(self, strips: Strips, images: Tensor, draw: Draw, **tensors: Tensor) -> None:
        shape, recipe = strips.shape, strips.shape.recipe
        self._held = {"images": images.contiguous(), "streams": draw.streams.contiguous()} | tensors
        self.given = _Given(
            sigma=recipe.sigma, tau=recipe.tau, beta=recipe.beta, doubt=shape.doubt, bias=shape.bias,
            codes=shape.codes, limit=shape.limit, strips=strips.count, noisy=recipe.weights_from == "noisy",
            cut=shape.cut(), keys=keys(draw.seed),
            **{name: tensor.data_ptr() for name, tensor in self._held.items()},
        )  # fmt: skip
        blocks = 2 if shape.products <= _FEW_PRODUCTS else 1
        constants = {"THREADS": 32 * WARPS, "STRIP": STRIP, "BATCH": _BATCH, "BLOCKS": blocks}
        self._program = program.compiled("strips.cu", shape.constants() | constants, images.device)

    def __call__(
        self, name: str, width: int, height: int = 1, *, shared: int = 0, divided: int = 100
    ) -> None:
        self._program.launch(name, self.given, width, height, shared=shared, divided=divided)
