"""What the kernels work in, and how much of it: block sizes, the workspace of an image, where they run."""

import os
from dataclasses import dataclass

import torch
from torch import Tensor

from vqshield.quantization.noise import Draw

AT_ONCE = 6144  # images a launch: the last programs, which leave a GPU half empty, are few among them
ROWS = 64  # patches a block
WIDE_ROWS = 256  # of which the workspace holds a multiple
STRIP = 2048  # patches of an image that one program takes
START_STRIP = 1024  # and in k-means++
LABEL_STRIP = 1024  # and where patches get their final label
TILE = 2048  # values of the patches that are made at once
PIXELS = 256
STATES = 512  # patches at once where only a number or two of each is read
FEW = 32  # codes up to which a program of a round has few warps
# Measured on an H200: how many warps a program has. Few, where matrix products wait for each other and other
# programs fill the gaps; many, where one program must get through an image.
ROUNDS = {"num_warps": 4, "num_stages": 3}
MANY_ROUNDS = {"num_warps": 8}  # more codes than FEW need more registers
START = {"num_warps": 2}
TILES = {"num_warps": 4}
LABELS = {"num_warps": 4, "num_stages": 1}


def interpreting() -> bool:
    """Whether Triton runs its kernels on the CPU, slowly, for tests."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def compiled(options: dict[str, int]) -> dict[str, int]:
    """How a kernel is compiled, where it is."""
    return {} if interpreting() else options


def key_of(draw: Draw) -> Tensor:
    """The seed, as a signed number on the device of the streams."""
    seed = draw.seed - 2**64 if draw.seed >= 2**63 else draw.seed
    # Not torch.tensor: its copy would wait for the device.
    return torch.full((1,), seed, dtype=torch.int64, device=draw.streams.device)


@dataclass(frozen=True)
class Sizes:
    """The workspace's: patches up to whole blocks, codes and dimensions up to powers of two."""

    rows: int
    codes: int
    dimensions: int

    @classmethod
    def of(cls, patches: int, codes: int, dimensions: int) -> "Sizes":
        """Room for a one behind each patch; matrix units want at least 16."""
        whole = -(-patches // WIDE_ROWS) * WIDE_ROWS
        return cls(whole, power_of_two(codes, least=16), power_of_two(dimensions + 1, least=16))

    def bytes(self, *, patches: bool) -> int:
        """Of one image's workspace: with patches, and the partial sums of its strips, or for labels alone."""
        if not patches:
            return 8 * self.rows + 4 * self.codes * self.dimensions
        strips = -(-self.rows // STRIP)
        return self.rows * (4 * self.dimensions + 12) + 4 * (strips + 1) * self.codes * self.dimensions


@dataclass(frozen=True)
class Workspace:
    """What the kernels keep beside input and output, one share per image."""

    x: Tensor  # (B, 2, rows, dimensions): noisy patches as hi and lo, see parts.py
    floats: Tensor  # (B, rows): distances, later similarities
    labels: Tensor  # (B, rows)
    centres: Tensor  # (B, codes, dimensions)
    listed: Tensor  # (B, rows): patches that a new centre may be nearer to
    gaps: Tensor  # (B, codes): squared distances of a new centre from the others

    def __getitem__(self, images: slice) -> "Workspace":
        return Workspace(
            self.x[images], self.floats[images], self.labels[images], self.centres[images],
            self.listed[images], self.gaps[images],
        )  # fmt: skip

    @classmethod
    def make(cls, count: int, sizes: Sizes, device: torch.device, *, patches: bool) -> "Workspace":
        """Not filled, but for the centres: whoever writes the patches writes what is behind them as well, in
        whole blocks of ROWS. Without patches, and what finds codebooks, where nobody will.
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


def power_of_two(count: int, least: int = 1) -> int:
    """The smallest power of two that is at least count."""
    return max(least, 1 << max(0, count - 1).bit_length())
