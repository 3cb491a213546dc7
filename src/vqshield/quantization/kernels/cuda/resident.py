"""The defense for small images, by resident.cu: which ones, and how it is launched."""

import ctypes
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Resident:
    """The defense for images of one shape on one device: a block of threads an image."""

    device: torch.device
    shape: CudaShape

    @classmethod
    def of(cls, padded: Tensor, recipe: Recipe, codes: int) -> "Resident | None":
        """What serves these images, if anything does."""
        if not program.can_run(padded.device):
            return None
        channels, height, width = padded.shape[1:]
        return _resident(padded.device, CudaShape(recipe, codes, channels, height, width))

    def shared(self, warps: int) -> int:
        """Bytes of a block's shared memory, as room_of in resident.cu lays it out."""
        shape = self.shape
        codes, groups = shape.room_for_codes, -(-shape.patches // 32)
        start = codes + groups * 98
        rounds = codes * (shape.read + 3 + shape.tally) + groups * 32 + -(-groups // warps) * warps * 16
        return 4 * (
            shape.patches * shape.stride + shape.behind + shape.tally + codes + 4 + max(start, rounds)
        )

    @cached_property
    def warps(self) -> int:
        """Of a block; fewer, where more blocks find room beside each other: so measured on an H200."""
        return 4 if self.shared(4) <= _LITTLE else 8

    def run(self, wanted: Wanted, images: Tensor, centres: Tensor | None, draw: Draw) -> Tensor:
        """What is wanted, of float32 images (B, q, h, w) and given centres (B, k, d), or those that it finds.

        Labels are int32.
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
            **self._settings,
            **{name: tensor.data_ptr() for name, tensor in tensors.items() if tensor is not None},
        )
        if len(images):
            with self._program.launching(argument) as launch:
                launch("resident_kernel", len(images), shared=self.shared(self.warps))
        found = centres if wanted == "centres" else labels if wanted == "labels" else output
        assert found is not None
        return found

    @cached_property
    def _program(self) -> program.Program:
        """Compiled for as many blocks beside each other as there is room for, and registers."""
        room = program.most_shared(self.device) // self.shared(self.warps)
        blocks = max(1, min(16 // self.warps, room))
        return program.compiled(
            "resident.cu",
            self.shape.constants() | {"THREADS": 32 * self.warps, "BLOCKS": blocks},
            self.device,
        )

    @cached_property
    def _settings(self) -> dict[str, object]:
        """What all launches are told."""
        shape, recipe = self.shape, self.shape.recipe
        return {
            "sigma": recipe.sigma,
            "tau": recipe.tau,
            "beta": recipe.beta,
            "scale": shape.scale(shape.patches),
            "most": shape.patches * shape.dimensions * (2 * shape.largest) ** 2,
            "doubt": shape.doubt,
            "bias": shape.bias,
            "spread": recipe.init == "kmeans++",
            "noisy": recipe.weights_from == "noisy",
            "codes": shape.codes,
            "iterations": recipe.iterations,
            "limit": shape.limit,
            "cut": shape.cut(),
        }


@lru_cache(maxsize=256)
def _resident(device: torch.device, shape: CudaShape) -> Resident | None:
    """Where the image's patches and the operands of k-means find room on that device."""
    if not (shape.is_served and shape.patches <= _MOST_PATCHES):
        return None
    found = Resident(device, shape)
    return found if found.shared(found.warps) <= program.most_shared(device) else None
