"""The defense for small images, by resident.cu: which images it serves, and its launch."""

import ctypes
from functools import cached_property, lru_cache

import torch
from torch import Tensor

from vqshield.quantization.kernels.base import Recipe, Wanted
from vqshield.quantization.kernels.cuda import program
from vqshield.quantization.kernels.cuda.shapes import CudaShape, Cut, Keys, keys
from vqshield.quantization.noise import Draw

_MOST_PATCHES = 2**15  # whose numbers fit into a list's 16 bits, and whose sums are fine enough
_LITTLE = 48 * 1024  # bytes of shared memory


class _Given(ctypes.Structure):
    """As in resident.cu."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("images", "streams", "codebooks", "output", "labels")),
        *((name, ctypes.c_float) for name in ("sigma", "tau", "beta", "scale", "most", "doubt", "bias")),
        *((name, ctypes.c_int) for name in ("finds", "spread", "noisy", "codes", "iterations", "limit")),
        ("cut", Cut),
        ("keys", Keys),
    )


class Resident:
    """The defense for images of one shape on one device: each image takes one block of threads."""

    def __init__(self, device: torch.device, shape: CudaShape) -> None:
        self.device, self.shape = device, shape
        # Fewer, where more blocks fit at once: so measured on an H200.
        self.warps = 4 if _shared(shape, 4) <= _LITTLE else 8
        self.shared = _shared(shape, self.warps)
        self._arguments = shape.arguments(shape.patches) | {
            "most": shape.patches * shape.dimensions * (2 * shape.largest) ** 2,
            "spread": shape.recipe.init == "kmeans++",
        }

    @staticmethod
    def of(padded: Tensor, recipe: Recipe, codes: int) -> "Resident | None":
        """The launcher for these images; None where resident.cu cannot serve them."""
        if not program.can_run(padded.device):
            return None
        return _resident(padded.device, recipe, codes, *padded.shape[1:])

    def run(self, wanted: Wanted, images: Tensor, centres: Tensor | None, draw: Draw) -> Tensor:
        """The wanted tensor, labels as int32, of float32 images (B, q, h, w).

        centres: (B, k, d); None: those that k-means finds.
        """
        finds = centres is None
        output = labels = None
        if wanted == "centres":
            centres = images.new_empty(len(images), self.shape.codes, self.shape.dimensions)
        else:
            output = torch.empty_like(images, memory_format=torch.contiguous_format)
        if wanted == "labels":
            labels = torch.empty(len(images), self.shape.patches, dtype=torch.int32, device=images.device)
        tensors = {
            "images": images.contiguous(),
            "streams": draw.streams.contiguous(),
            "codebooks": None if centres is None else centres.contiguous(),
            "output": output,
            "labels": labels,
        }
        argument = _Given(
            finds=finds,
            keys=keys(draw.seed),
            **self._arguments,
            **{name: tensor.data_ptr() for name, tensor in tensors.items() if tensor is not None},
        )
        if len(images):
            with self._program.launching(argument) as launch:
                launch("resident_kernel", len(images), shared=self.shared)
        result = centres if wanted == "centres" else labels if wanted == "labels" else output
        assert result is not None
        return result

    @cached_property
    def _program(self) -> program.Program:
        """Compiled for as many blocks at once as shared memory and registers allow."""
        blocks = max(1, min(16 // self.warps, program.most_shared(self.device) // self.shared))
        constants = self.shape.constants | {"THREADS": 32 * self.warps, "BLOCKS": blocks}
        return program.compiled("resident.cu", constants, self.device)


def _shared(shape: CudaShape, warps: int) -> int:
    """Bytes of a block's shared memory, as room_of in resident.cu lays it out."""
    codes, groups = shape.room_for_codes, -(-shape.patches // 32)
    start = codes + groups * 98
    rounds = codes * (shape.read + 3 + shape.tally) + groups * 32 + -(-groups // warps) * warps * 16
    return 4 * (shape.patches * shape.stride + shape.behind + shape.tally + codes + 4 + max(start, rounds))


@lru_cache(maxsize=256)
def _resident(
    device: torch.device, recipe: Recipe, codes: int, channels: int, height: int, width: int
) -> Resident | None:
    """A launcher where the image's patches and the operands of k-means fit on that device."""
    shape = CudaShape(recipe, codes, channels, height, width)
    if not (shape.is_served and shape.patches <= _MOST_PATCHES):
        return None
    resident = Resident(device, shape)
    return resident if resident.shared <= program.most_shared(device) else None
