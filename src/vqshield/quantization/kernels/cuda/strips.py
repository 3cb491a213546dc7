"""k-means and labels for large images, by strips.cu: which images it serves, and its launches."""

import ctypes
import math

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
    """As in strips.cu; a launch leaves empty what it does not need."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("images", "streams", "rows", "near", "sketches", "states")),
        *((name, ctypes.c_void_p) for name in ("totals", "centres", "picked", "factors", "norms", "steps")),
        *((name, ctypes.c_void_p) for name in ("ways", "longest", "sums", "moved", "active", "codebooks")),
        *((name, ctypes.c_longlong) for name in ("image_stride", "centre_stride")),
        *((name, ctypes.c_void_p) for name in ("labels", "similarities")),
        ("label_stride", ctypes.c_longlong),
        *((name, ctypes.c_float) for name in ("sigma", "tau", "beta", "scale", "near_scale", "largest")),
        *((name, ctypes.c_float) for name in ("doubt", "bias")),
        *((name, ctypes.c_int) for name in ("codes", "iterations", "limit", "strips", "room", "noisy")),
        ("number", ctypes.c_int),
        ("cut", Cut),
        ("keys", Keys),
    )

    def point(self, **tensors: Tensor) -> None:
        """Write the tensors' addresses, and hold the tensors as long as the launches need them."""
        self._held = (*getattr(self, "_held", ()), *tensors.values())
        for name, tensor in tensors.items():
            setattr(self, name, tensor.data_ptr())


class Strips:
    """Codebooks and labels of images of one shape: a block of threads takes a strip of an image's patches."""

    def __init__(self, shape: CudaShape) -> None:
        self.shape = shape
        self.count = -(-shape.patches // STRIP)  # strips of an image
        # Warps of a block: a multiprocessor's registers hold two blocks.
        self.warps = 8 if shape.products <= _FEW_PRODUCTS else 4
        # Patches of an image, and those after the last that a product reads, up to whole groups of 32.
        self.room = 32 * -(-(shape.patches + -(-shape.behind // shape.stride)) // 32)
        self.patch_bytes = 4 * self.room * shape.stride  # of an image's noisy patches in global memory
        self._batches = -(-shape.patches // _BATCH)
        # Bytes of shared memory for patches that are made at once; for a round (fetched patches, sums, ways,
        # lists); for labels.
        self._batch_bytes = 4 * (_BATCH * shape.stride + shape.behind + shape.dimensions)
        fetched = self.warps * 2 * (32 * shape.stride + shape.behind)
        self._round_bytes = 4 * (fetched + shape.room_for_codes * (shape.tally + 1)) + 2 * STRIP
        self._label_bytes = self._batch_bytes + 4 * shape.codes * shape.tally

    @classmethod
    def of(cls, padded: Tensor, recipe: Recipe, codes: int) -> "Strips | None":
        """The launcher for these images; None where strips.cu cannot serve them."""
        strips, device = cls(CudaShape(recipe, codes, *padded.shape[1:])), padded.device
        is_served = (
            strips.shape.is_served
            and codes <= _MOST_CODES
            and program.can_run(device)
            and max(strips._round_bytes, strips._label_bytes) <= program.most_shared(device)
        )
        return strips if is_served else None

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
            given.sketches = given.states  # the same memory: states begin after the start is found
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
        with self._program(images.device).launching(given) as launch:
            launch("prepare_kernel", batch)
            launch("label_kernel", self._batches, batch, shared=self._label_bytes)

    def _given(self, images: Tensor, draw: Draw) -> _Given:
        """The arguments of all launches."""
        shape = self.shape
        farthest = shape.dimensions * (2 * shape.largest) ** 2
        given = _Given(
            **shape.arguments(min(STRIP, shape.patches)),
            near_scale=2.0 ** math.floor(31 - math.log2(farthest)),
            largest=shape.largest,
            strips=self.count,
            room=self.room,
            keys=keys(draw.seed),
        )
        given.point(images=images.contiguous(), streams=draw.streams.contiguous())
        return given

    def _program(self, device: torch.device) -> program.Program:
        constants = {"THREADS": 32 * self.warps, "STRIP": STRIP, "BATCH": _BATCH}
        return program.compiled("strips.cu", self.shape.constants | constants, device)
