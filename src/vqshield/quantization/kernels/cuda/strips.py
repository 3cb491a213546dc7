"""k-means and labels for large images, by strips.cu: which ones, and how its kernels are launched."""

import ctypes
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from vqshield.quantization.kernels.base import Recipe
from vqshield.quantization.kernels.cuda import program
from vqshield.quantization.kernels.cuda.shapes import CudaShape, Cut, Keys, keys
from vqshield.quantization.noise import Draw

STRIP = 4096  # patches that one block takes
_BATCH = 256  # patches that are made at once
_FEW_PRODUCTS = 8  # whose operands leave registers for a second block of as many warps
_CACHE = 14  # percent of a multiprocessor's memory are shared then, the rest is cache
_MOST_CODES = 255  # whose numbers fit into a byte


class _Given(ctypes.Structure):
    """As in strips.cu; what a launch does not need stays empty."""

    _fields_ = (
        *(
            (name, ctypes.c_void_p)
            for name in ("images", "streams", "rows", "near", "sketches", "states", "totals", "centres")
        ),
        *(
            (name, ctypes.c_void_p)
            for name in ("picked", "factors", "norms", "steps", "ways", "longest", "sums", "moved", "active")
        ),
        ("codebooks", ctypes.c_void_p),
        *((name, ctypes.c_longlong) for name in ("image_stride", "centre_stride")),
        *((name, ctypes.c_void_p) for name in ("labels", "similarities")),
        ("label_stride", ctypes.c_longlong),
        *(
            (name, ctypes.c_float)
            for name in ("sigma", "tau", "beta", "scale", "near_scale", "largest", "doubt", "bias")
        ),
        *(
            (name, ctypes.c_int)
            for name in ("codes", "iterations", "limit", "strips", "room", "noisy", "number")
        ),
        ("cut", Cut),
        ("keys", Keys),
    )

    def point(self, **tensors: Tensor) -> None:
        """Tell where tensors lie, and hold them as long as the launches need them."""
        self._held = (*getattr(self, "_held", ()), *tensors.values())
        for name, tensor in tensors.items():
            setattr(self, name, tensor.data_ptr())


@dataclass(frozen=True)
class Strips:
    """Codebooks and labels of images of one shape: a block of threads takes a strip of an image's patches."""

    shape: CudaShape

    @classmethod
    def of(cls, padded: Tensor, recipe: Recipe, codes: int) -> "Strips | None":
        """What serves these images, if anything does."""
        found = cls(CudaShape(recipe, codes, *padded.shape[1:]))
        return found if found._serves(padded.device) else None

    @property
    def count(self) -> int:
        """Strips of an image."""
        return -(-self.shape.patches // STRIP)

    @property
    def warps(self) -> int:
        """Of a block, of which a multiprocessor's registers hold two."""
        return 8 if self.shape.products <= _FEW_PRODUCTS else 4

    @property
    def room(self) -> int:
        """Patches of an image, and those behind the last that a product reads, up to whole groups of 32."""
        shape = self.shape
        return 32 * -(-(shape.patches + -(-shape.behind // shape.stride)) // 32)

    @property
    def patch_bytes(self) -> int:
        """Of an image's noisy patches in global memory."""
        return 4 * self.room * self.shape.stride

    def fit(self, images: Tensor, draw: Draw, centres: Tensor) -> None:
        """The codebooks less ½, of float32 images (B, q, h, w), into centres (B, k, d) of any strides."""
        shape, recipe, batch = self.shape, self.shape.recipe, len(images)
        codes, spreads = shape.room_for_codes, recipe.init == "kmeans++"

        def made(*size: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.empty(batch, *size, dtype=dtype, device=images.device)

        given = self._given(images, draw)
        given.point(
            rows=made(self.room, shape.stride, dtype=torch.int32), states=made(self.room, dtype=torch.int32)
        )
        if spreads:
            given.sketches = given.states  # one place: there are no states before the start is found
        with self._program(images.device).launching(given) as launch:
            # First of all: while the GPU is busy with it, the rest gets ready.
            launch("patches_kernel", self._batches, batch, shared=self._batch_bytes)
            given.point(
                near=made(self.room),
                totals=made(self.count, dtype=torch.int64),
                centres=made(codes, shape.tally),
                picked=made(dtype=torch.int32),
                factors=made(codes, shape.read, dtype=torch.int32),
                norms=made(codes),
                steps=made(codes),
                ways=made(codes),
                longest=made(),
                sums=made(codes, shape.tally, dtype=torch.int64),
                moved=made(dtype=torch.int32),
                active=made(dtype=torch.int32),
                codebooks=centres,
            )
            given.image_stride, given.centre_stride = centres.stride(0), centres.stride(1)
            if spreads:
                scratch, listed = 8 * (self.warps + 2), 8 * self.warps + 4 * shape.tally + 2 * STRIP
                launch("pick_kernel", batch, shared=scratch, divided=_CACHE)
                for given.number in range(1, shape.codes):
                    launch("near_kernel", self.count, batch, shared=listed, divided=_CACHE)
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
        given = self._given(images, draw)
        given.point(
            centres=padded,
            factors=torch.empty(batch, codes, shape.read, dtype=torch.int32, device=images.device),
            norms=images.new_empty(batch, codes),
            labels=labels,
            similarities=similarities,
        )
        given.label_stride = labels.stride(0)
        shared = self._batch_bytes + 4 * shape.codes * shape.tally
        with self._program(images.device).launching(given) as launch:
            launch("prepare_kernel", batch)
            launch("label_kernel", self._batches, batch, shared=shared)

    def _given(self, images: Tensor, draw: Draw) -> _Given:
        """What all launches are told."""
        shape, recipe = self.shape, self.shape.recipe
        farthest = shape.dimensions * (2 * shape.largest) ** 2
        given = _Given(
            sigma=recipe.sigma, tau=recipe.tau, beta=recipe.beta,
            scale=shape.scale(min(STRIP, shape.patches)),
            near_scale=2.0 ** math.floor(31 - math.log2(farthest)),
            largest=shape.largest, doubt=shape.doubt, bias=shape.bias,
            codes=shape.codes, iterations=recipe.iterations, limit=shape.limit,
            strips=self.count, room=self.room, noisy=recipe.weights_from == "noisy",
            cut=shape.cut(), keys=keys(draw.seed),
        )  # fmt: skip
        given.point(images=images.contiguous(), streams=draw.streams.contiguous())
        return given

    def _program(self, device: torch.device) -> program.Program:
        constants = {"THREADS": 32 * self.warps, "STRIP": STRIP, "BATCH": _BATCH}
        return program.compiled("strips.cu", self.shape.constants() | constants, device)

    @property
    def _batches(self) -> int:
        return -(-self.shape.patches // _BATCH)

    @property
    def _batch_bytes(self) -> int:
        """Of shared memory, for patches that are made at once."""
        return 4 * (_BATCH * self.shape.stride + self.shape.behind + self.shape.dimensions)

    @property
    def _round_bytes(self) -> int:
        """Of shared memory, for a round: patches on their way, sums, ways, lists."""
        shape = self.shape
        fetched = 2 * (32 * shape.stride + shape.behind)
        return 4 * (self.warps * fetched + shape.room_for_codes * (shape.tally + 1)) + 2 * STRIP

    def _serves(self, device: torch.device) -> bool:
        needed = max(self._round_bytes, self._batch_bytes + 4 * self.shape.codes * self.shape.tally)
        return (
            self.shape.is_served
            and self.shape.codes <= _MOST_CODES
            and program.can_run(device)
            and needed <= program.most_shared(device)
        )
