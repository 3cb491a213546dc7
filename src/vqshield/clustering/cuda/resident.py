"""The defense for small images, by resident.cu: which ones, and how it is launched."""

import ctypes
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from vqshield.clustering.base import Recipe
from vqshield.clustering.cuda import program
from vqshield.clustering.cuda.shapes import Cut, Keys, Shape, keys
from vqshield.noise import Draw

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
    """The defense for images of one shape: a block of threads an image."""

    shape: Shape

    @classmethod
    def of(cls, padded: Tensor, recipe: Recipe, codes: int) -> "Resident | None":
        """What serves these images, if anything does."""
        found = cls(Shape(recipe, codes, *padded.shape[1:]))
        return found if found._serves(padded.device) else None

    def shared(self, warps: int) -> int:
        """Bytes of a block's shared memory, as room_of in resident.cu lays it out."""
        shape = self.shape
        codes, groups = shape.room_for_codes, -(-shape.patches // 32)
        start = codes + groups * 98
        rounds = codes * (shape.read + 2 + shape.tally) + groups * 32 + -(-groups // warps) * warps * 16
        return 4 * (shape.patches * shape.stride + shape.behind + shape.tally + codes + 4 + max(start, rounds))

    def warps(self) -> int:
        """Of a block; fewer, where more blocks find room beside each other: so measured on an H200."""
        return 4 if self.shared(4) <= _LITTLE else 8

    def codebook(self, images: Tensor, draw: Draw) -> Tensor:
        """The centres (B, k, d) of float32 images (B, q, h, w)."""
        centres = images.new_empty(len(images), self.shape.codes, self.shape.dimensions)
        self._launch(images, draw, finds=True, codebooks=centres)
        return centres

    def quantize(self, images: Tensor, centres: Tensor, draw: Draw) -> Tensor:
        """Assignment and rebuild with given centres."""
        output = torch.empty_like(images, memory_format=torch.contiguous_format)
        self._launch(images, draw, finds=False, codebooks=centres, output=output)
        return output

    def shield(self, images: Tensor, draw: Draw) -> Tensor:
        """The codebook and then the quantized images."""
        output = torch.empty_like(images, memory_format=torch.contiguous_format)
        self._launch(images, draw, finds=True, output=output)
        return output

    def assignments(self, images: Tensor, centres: Tensor, draw: Draw) -> Tensor:
        """The numbers (B, n) of the centres that quantize puts in place of the patches, int32."""
        labels = torch.empty(len(images), self.shape.patches, dtype=torch.int32, device=images.device)
        output = torch.empty_like(images, memory_format=torch.contiguous_format)
        self._launch(images, draw, finds=False, codebooks=centres, output=output, labels=labels)
        return labels

    def _serves(self, device: torch.device) -> bool:
        """Whether the image's patches and the operands of k-means find room on that device."""
        return (
            self.shape.is_served
            and self.shape.patches <= _MOST_PATCHES
            and program.can_run(device)
            and self.shared(self.warps()) <= program.most_shared(device)
        )

    def _launch(
        self,
        images: Tensor,
        draw: Draw,
        *,
        finds: bool,
        codebooks: Tensor | None = None,
        output: Tensor | None = None,
        labels: Tensor | None = None,
    ) -> None:
        if len(images) == 0:
            return
        shape, recipe, warps = self.shape, self.shape.recipe, self.warps()
        # Held until the launch, in case they are copies.
        given = [None if one is None else one.contiguous() for one in (images, draw.streams, codebooks)]
        argument = _Given(
            *(None if one is None else one.data_ptr() for one in (*given, output, labels)),
            recipe.sigma, recipe.tau, recipe.beta, shape.scale(shape.patches),
            shape.patches * shape.dimensions * (2 * shape.largest) ** 2, shape.doubt, shape.bias,
            finds, recipe.init == "kmeans++", recipe.weights_from == "noisy",
            shape.codes, recipe.iterations, shape.limit, shape.cut(), keys(draw.seed),
        )  # fmt: skip
        shared = self.shared(warps)
        # As many blocks beside each other as there is room for, and registers.
        blocks = max(1, min(16 // warps, program.most_shared(images.device) // shared))
        constants = shape.constants() | {"THREADS": 32 * warps, "BLOCKS": blocks}
        _program(images.device, tuple(constants.items())).launch(
            "resident_kernel", argument, len(images), shared=shared
        )


@lru_cache(maxsize=None)
def _program(device: torch.device, constants: tuple[tuple[str, int], ...]) -> program.Program:
    return program.Program("resident.cu", dict(constants), device)
