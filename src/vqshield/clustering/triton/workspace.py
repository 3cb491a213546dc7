"""What the kernels work in, and how much of it: block sizes, the workspace of an image, where they run."""

import math
import os
from dataclasses import dataclass

import torch
from torch import Tensor

SMALL = 4096  # patches up to which one program finds an image's codebook
AT_ONCE = 2048  # images a launch: enough to fill any GPU, and their workspace is soon reused
ROWS = 64  # patches a block in matrix products
WIDE_ROWS = 256  # and in k-means++, which has none
STRIP = 2048  # patches of a large image that one program takes
COUNTERS = 256  # blocks of four random words at once
PIXELS = 256
# Measured on an H200: how many warps a program has. Few, where matrix products wait for each other and other
# programs fill the gaps; many, where one program must get through an image.
ROUNDS = {"num_warps": 2, "num_stages": 3}
STRIP_ROUNDS = {"num_warps": 4, "num_stages": 3}
PLUS_PLUS = {"num_warps": 8}
RESIDENT = 2**15  # values of a small image's patches that k-means++ holds in registers
MOST_PACKED = 256  # centres whose number fits into the lowest bits of a score, see selective.py


@dataclass(frozen=True)
class Variant:
    """Which kernels find a codebook, and how they are compiled: to be measured against each other."""

    start: str = "passes"  # k-means++: "passes", "resident" (small images) or "selective"
    rounds: str = "passes"  # Lloyd's: "passes", "packed" (all patches each round) or "selective"
    start_warps: int = 8
    start_rows: int = 64  # patches a block
    runs: int = 64  # into which the resident start cuts an image's patches
    rounds_warps: int = 2
    rounds_rows: int = 64
    registers: int | None = None  # a thread's at most, in the rounds
    chunk: int = 256  # states at once
    strip: int = 2048  # patches of a large image that one program takes
    at_once: int = 2048  # images a launch
    patch_images: int = 0  # for how many images a program draws noise; 0: the kernel that has one

    def rounds_shape(self, sizes: "Sizes") -> tuple[int, int, dict[str, int]]:
        """Patches a block in the rounds, states a chunk, and how they are compiled.

        More codes or dimensions want more warps and fewer patches, and registers as many as there are.
        """
        chunk = math.gcd(sizes.rows, self.chunk)
        if max(sizes.codes, sizes.dimensions) > 32:
            rows = max(16, min(self.rounds_rows, 2**12 // sizes.codes))
            return rows, chunk, {"num_warps": 8 if sizes.codes > 128 else 4}
        limit = {"maxnreg": self.registers} if self.registers else {}
        return self.rounds_rows, chunk, {"num_warps": self.rounds_warps} | limit


PASSES = Variant()
variant = PASSES


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

    @property
    def bytes(self) -> int:
        """Of one image's workspace, the partial sums of its strips included."""
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
    def make(cls, count: int, sizes: Sizes, dimensions: int, device: torch.device) -> "Workspace":
        """Zeros, and the one behind the values of each patch."""
        x = torch.zeros(count, 2, sizes.rows, sizes.dimensions, dtype=torch.float16, device=device)
        x[:, 0, :, dimensions] = 1
        return cls(
            x,
            torch.empty(count, sizes.rows, device=device),
            torch.empty(count, sizes.rows, dtype=torch.int32, device=device),
            torch.zeros(count, sizes.codes, sizes.dimensions, device=device),
            torch.empty(count, sizes.rows, device=device),
            torch.empty(2, count, sizes.rows, dtype=torch.int32, device=device),
            torch.empty(count, sizes.codes, sizes.dimensions, device=device),
            torch.empty(count, sizes.codes, device=device),
        )


def power_of_two(count: int, least: int = 1) -> int:
    """The smallest power of two that is at least count."""
    return max(least, 1 << max(0, count - 1).bit_length())
