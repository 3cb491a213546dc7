"""What one would write in plain torch, in the fastest form that we found; eager, and compiled.

float32, torch's own noise, always ten iterations, no promise of equal results for equal streams.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from vqshield.defenses import SWRD
from vqshield_paper.speed.workloads import ITERATIONS, Problem, Workload

_FEW = 4  # with at most this many centres, a product with one-hot labels beats adding row by row on a CPU

Compute = Callable[..., Tensor]
Prepare = Callable[[Compute], Compute]
"""What is done to a function before it is timed: nothing, or compiling it."""


def eager(function: Compute) -> Compute:
    """The function as it is."""
    return function


def compiled(function: Compute) -> Compute:
    """The function compiled, from scratch: after a few shapes torch would run the rest uncompiled."""
    torch.compiler.reset()
    return torch.compile(function, dynamic=False)


def assign(patches: Tensor, centres: Tensor) -> Tensor:
    """The nearest centre of each patch, by ½‖c‖² − p·c: (B, n, d), (B, k, d) → (B, n)."""
    squares = (centres * centres).sum(-1, keepdim=True)
    # min over the middle dimension runs along memory; argmin over the last is half as fast on a CPU.
    return torch.baddbmm(squares, centres, patches.transpose(1, 2), beta=0.5, alpha=-1).min(1).indices


def update_by_product(patches: Tensor, labels: Tensor, centres: Tensor) -> Tensor:
    """The means of the clusters, as a product with one-hot labels; an empty one keeps its centre."""
    numbers = torch.arange(centres.shape[1], device=labels.device)[None, :, None]
    chosen = (labels[:, None] == numbers).to(patches.dtype)  # (B, k, n)
    counts = chosen.sum(-1, keepdim=True)
    return torch.where(counts > 0, torch.bmm(chosen, patches) / counts.clamp(min=1), centres)


def update_by_rows(patches: Tensor, labels: Tensor, centres: Tensor) -> Tensor:
    """The same, row by row."""
    batch, codes, dimensions = centres.shape
    rows = (labels + torch.arange(batch, device=labels.device)[:, None] * codes).flatten()
    sums = patches.new_zeros(batch * codes, dimensions).index_add_(0, rows, patches.flatten(0, 1))
    counts = patches.new_zeros(batch * codes).index_add_(0, rows, patches.new_ones(1).expand(len(rows)))
    means = (sums / counts.clamp(min=1)[:, None]).view_as(centres)
    return torch.where(counts.view(batch, codes, 1) > 0, means, centres)


def cut(images: Tensor, size: int, stride: int) -> Tensor:
    """Patches (B, n, d)."""
    windows = images.unfold(2, size, stride).unfold(3, size, stride)  # (B, q, rows, columns, s, s)
    return windows.permute(0, 2, 3, 1, 4, 5).reshape(len(images), -1, images.shape[1] * size**2)


def rebuild(
    patches: Tensor, centres: Tensor, labels: Tensor, shape: torch.Size, stride: int, beta: float
) -> Tensor:
    """Centres in place of patches; where windows overlap, weighted by exp(−beta·distance²)."""
    codes = centres.shape[1]
    rows = (labels + torch.arange(len(labels), device=labels.device)[:, None] * codes).flatten()
    quantized = centres.flatten(0, 1).index_select(0, rows).view_as(patches)
    size = round((patches.shape[2] / shape[1]) ** 0.5)
    if stride == size:
        return F.fold(quantized.transpose(1, 2), shape[2:], size, stride=stride).clamp(0, 1)
    weights = (-beta * (quantized - patches).square().sum(-1, keepdim=True)).exp()
    total = F.fold((quantized * weights).transpose(1, 2), shape[2:], size)
    norm = F.fold(weights.expand(-1, -1, size * size).transpose(1, 2), shape[2:], size)
    return (total / norm).clamp(0, 1)


def kmeans(prepare: Prepare, problem: Problem) -> Callable[[], Tensor]:
    """A call that clusters all images at once and returns the centres."""
    iterate = _iteration(prepare, problem.patches.device, problem.start.shape[1])

    def call() -> Tensor:
        centres = problem.start
        for _ in range(problem.iterations):
            centres = iterate(problem.patches, centres)
        return centres

    return call


def defense(prepare: Prepare, workload: Workload, images: Tensor) -> Callable[[], Tensor]:
    """A call that shields the images: noise, k-means, assignment, rebuild."""
    shield = workload.shield()
    beta, stride = (shield.beta, 1) if isinstance(shield, SWRD) else (0.0, workload.size)
    places = torch.randperm(workload.count)[: workload.codes].to(images.device)

    def begin(images: Tensor, noise: Tensor) -> Tensor:
        return cut(images, workload.size, stride) + shield.sigma * noise

    def end(images: Tensor, centres: Tensor, noise: Tensor) -> Tensor:
        patches = cut(images, workload.size, stride)
        labels = assign(patches + shield.tau * noise, centres)
        return rebuild(patches, centres, labels, images.shape, stride, beta)

    begin_, end_ = prepare(begin), prepare(end)
    iterate = _iteration(prepare, images.device, workload.codes)

    def noise() -> Tensor:  # drawn outside what is compiled: compiled code draws slowly on a CPU
        return torch.randn(len(images), workload.count, workload.dimensions, device=images.device)

    def call() -> Tensor:
        patches = begin_(images, noise())
        centres = patches[:, places]
        for _ in range(ITERATIONS):
            centres = iterate(patches, centres)
        return end_(images, centres, noise())

    return call


def _iteration(prepare: Prepare, device: torch.device, codes: int) -> Compute:
    update = update_by_product if device.type == "cuda" or codes <= _FEW else update_by_rows
    return prepare(lambda patches, centres: update(patches, assign(patches, centres), centres))
