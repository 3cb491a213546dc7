"""What the kernels work in, and how much of it: block sizes, the workspace of an image, where they run."""

import os
from dataclasses import dataclass

import torch
from torch import Tensor

SMALL = 4096  # patches up to which one program finds an image's codebook
AT_ONCE = 6144  # images a launch: the last programs, which leave a GPU half empty, are few among them
ROWS = 64  # patches a block
WIDE_ROWS = 256  # of which the workspace holds a multiple
STRIP = 2048  # patches of a large image that one program takes
START_STRIP = 1024  # and in k-means++
LABEL_STRIP = 1024  # and where patches get their final label
TILE = 2048  # values of the patches that are made at once
PIXELS = 256
STATES = 512  # patches at once where only a number or two of each is read
RESIDENT = 2**15  # values of a small image's patches that k-means++ holds in registers
FEW = 32  # codes and dimensions up to which a small image's rounds are quickest over all its patches
MOST_PACKED = 256  # centres whose number fits into the lowest bits of a score, see selective.py
# Measured on an H200: how many warps a program has. Few, where matrix products wait for each other and other
# programs fill the gaps; many, where one program must get through an image.
ROUNDS = {"num_warps": 2, "num_stages": 3}
MANY_ROUNDS = {"num_warps": 8}  # more codes than FEW need more registers
STRIP_ROUNDS = {"num_warps": 4, "num_stages": 3}
START = {"num_warps": 8}
STRIP_START = {"num_warps": 2}
TILES = {"num_warps": 4}
LABELS = {"num_warps": 4, "num_stages": 1}


def interpreting() -> bool:
    """Whether Triton runs its kernels on the CPU, slowly, for tests."""
    return os.environ.get("TRITON_INTERPRET") == "1"


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
        strips = -(-self.rows // STRIP) if self.rows > SMALL else 0
        return self.rows * (4 * self.dimensions + 20) + 4 * (strips + 2) * self.codes * self.dimensions


@dataclass(frozen=True)
class Workspace:
    """What the kernels keep beside input and output, one share per image."""

    x: Tensor  # (B, 2, rows, dimensions): noisy patches as hi and lo, see parts.py
    floats: Tensor  # (B, rows): distances, later similarities
    labels: Tensor  # (B, rows)
    centres: Tensor  # (B, codes, dimensions)
    squares: Tensor  # (B, rows): half the squared norms
    lists: Tensor  # (2, B, rows): patches to look at, patches that moved
    sums: Tensor  # (B, codes, dimensions): of the clusters
    steps: Tensor  # (B, codes): how far centres moved, or are from a new one

    def __getitem__(self, images: slice) -> "Workspace":
        return Workspace(
            self.x[images], self.floats[images], self.labels[images], self.centres[images],
            self.squares[images], self.lists[:, images], self.sums[images], self.steps[images],
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
            torch.empty(count, rows, device=device),
            torch.empty(2, count, rows, dtype=torch.int32, device=device),
            torch.empty(count, codes, sizes.dimensions, device=device),
            torch.empty(count, codes, device=device),
        )


def power_of_two(count: int, least: int = 1) -> int:
    """The smallest power of two that is at least count."""
    return max(least, 1 << max(0, count - 1).bit_length())
