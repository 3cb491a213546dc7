"""What is measured: natural images of a size, the quantizer that shields them, and their noisy patches."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from vqshield.core import checks
from vqshield.data import sample
from vqshield.defenses import Quantizer, create
from vqshield.quantization.fixed_point import FixedPoint
from vqshield.quantization.noise import LARGEST_NORMAL, Draw, Stage

ITERATIONS = 10
SEED = 0
# The settings of a whole defense: those of the k-means comparison, and those that a user gets.
SETTINGS: Mapping[str, Mapping[str, int | str]] = {
    "ten": {"iterations": ITERATIONS, "init": "random"},
    "default": {},
}
_VALUES_AT_ONCE = 2**24  # how many noise values are drawn at a time: a GPU's batch would not fit whole


@dataclass(frozen=True, kw_only=True)
class Workload:
    """Images of q = channels and side×side pixels, shielded by a defense with s = size and k = codes."""

    name: str
    defense: str = "swrd"
    channels: int = 3
    side: int = 32
    size: int = 3
    codes: int = 25
    cpu_batch: int = 64
    cuda_batches: tuple[int, ...] = (4096, 16384, 65536)

    def shield(self, settings: str = "default", *, backend: str = "auto") -> Quantizer:
        """The defense, with settings named in SETTINGS."""
        return create(
            self.defense, size=self.size, codes=self.codes, seed=SEED, backend=backend, **SETTINGS[settings]
        )

    @property
    def count(self) -> int:
        """n, the number of patches in an image."""
        return self.shield().grid.count(self.side, self.side)

    @property
    def dimensions(self) -> int:
        """d, the number of values in a patch."""
        return self.channels * self.size**2

    def flops(self, step: str, iterations: float = ITERATIONS) -> float:
        """Additions and multiplications for an image: in each iteration every patch meets every centre
        (2·n·k·d) and goes into one sum (n·d); the whole defense assigns once more.
        """
        meetings, sums = 2 * self.count * self.codes * self.dimensions, self.count * self.dimensions
        return iterations * (meetings + sums) + (meetings if step == "defense" else 0)

    def batches(self, device: torch.device) -> tuple[int, ...]:
        """Images per call; of several batch sizes the fastest counts."""
        return self.cuda_batches if device.type == "cuda" else (self.cpu_batch,)


# A new workload: one line here.
_WORKLOADS = {
    workload.name: workload
    for workload in (
        Workload(name="cifar-swrd-3-25"),
        Workload(name="cifar-prd-2-25", defense="prd", size=2),
        Workload(name="mnist-swrd-2-2", channels=1, side=28, size=2, codes=2),
        Workload(name="large-swrd-3-30", side=328, codes=30, cpu_batch=4, cuda_batches=(16, 64, 256)),
    )
}


def list_workloads() -> list[str]:
    """The names of the workloads."""
    return list(_WORKLOADS)


def workload(name: str) -> Workload:
    """The workload of that name; an error names the known ones."""
    return _WORKLOADS[checks.one_of("workload", name, _WORKLOADS)]


def pictures(workload: Workload, batch: int, device: torch.device) -> Tensor:
    """Natural images (B, q, h, w): the bundled sample, repeated where the batch is larger.

    They are cropped or enlarged to the workload's side; for one channel their colours are averaged.
    """
    images = sample().floats()[:batch].to(device)
    if workload.channels == 1:
        images = images.mean(1, keepdim=True)
    if workload.side <= images.shape[2]:
        first = (images.shape[2] - workload.side) // 2
        inside = slice(first, first + workload.side)
        images = images[:, :, inside, inside]
    else:
        images = F.interpolate(images, size=(workload.side,) * 2, mode="bilinear", antialias=False)
    times = -(-batch // len(images))
    return images.repeat(times, 1, 1, 1)[:batch].clamp(0, 1).contiguous()


def streams(batch: int, device: torch.device) -> Tensor:
    """The stream number of every image: each has noise of its own, repeated pictures too."""
    return torch.arange(batch, device=device)


@dataclass(frozen=True)
class Problem:
    """What every k-means is given: the noisy patches that the defense makes, and where to start."""

    patches: Tensor  # (B, n, d), float32
    start: Tensor  # (B, k, d), float32: patches at k distinct places, the same for every implementation
    iterations: int = ITERATIONS

    @staticmethod
    def make(workload: Workload, images: Tensor) -> "Problem":
        """The noisy patches of these images, and a start among them."""
        count, dimensions = workload.count, workload.dimensions
        patches = torch.empty(len(images), count, dimensions, device=images.device)
        step = max(1, _VALUES_AT_ONCE // (count * dimensions))
        for first in range(0, len(images), step):
            part = slice(first, first + step)
            numbers = streams(len(images), images.device)[part]
            patches[part] = _noisy(workload.shield(), images[part], numbers)
        chooser = torch.Generator().manual_seed(SEED)
        places = torch.randperm(count, generator=chooser)[: workload.codes].to(images.device)
        return Problem(patches, patches[:, places].clone())

    def first(self, images: int) -> "Problem":
        """The same for the first images only."""
        return Problem(self.patches[:images], self.start[:images], self.iterations)


def _noisy(shield: Quantizer, images: Tensor, numbers: Tensor) -> Tensor:
    """The patches as the defense's own k-means sees them: with its noise, rounded to its grid."""
    padded = shield.grid.pad(images)
    clean = shield.grid.cut(padded, 0, shield.grid.count(*padded.shape[2:])).double()
    values = clean.shape[1] * clean.shape[2]
    noise = Draw(SEED, numbers).normals(Stage.CODEBOOK, 0, values).view_as(clean)
    fixed = FixedPoint.fitting(clean.shape[2], bound=1 + LARGEST_NORMAL * max(shield.sigma, shield.tau))
    return fixed.round(clean + shield.sigma * noise)
