"""Lloyd's algorithm in plain torch, batched over images: what faster kernels are checked against."""

import torch
from torch import Tensor

from vqshield.quantization.kernels.noisy import NoisyPatches


def nearest(patches: Tensor, centres: Tensor) -> Tensor:
    """The index of the centre nearest to each patch, the lowest among equals: (B, m, d), (B, k, d) → (B, m).

    ‖p−c‖² less ‖p‖², which all centres share; exact for values on a grid (fixedpoint), so ties are true.
    """
    squares = (centres * centres).sum(-1, keepdim=True)
    scores = torch.baddbmm(squares, centres, patches.transpose(1, 2), alpha=-2)  # (B, k, m)
    return scores.min(dim=1).indices


def run_lloyd(patches: NoisyPatches, centres: Tensor, *, iterations: int, tolerance: float) -> Tensor:
    """The centres after k-means, each image stopped on its own; an empty cluster keeps its centre."""
    result = centres.clone()
    active = torch.arange(len(centres), device=centres.device)
    labels: list[Tensor] = []
    for _ in range(iterations):
        fresh, sums, counts = _assign(patches, centres)
        means = patches.fixed.round(sums / counts.clamp(min=1))
        centres = torch.where(counts > 0, means, centres)
        result[active] = centres
        if labels:
            changed = torch.stack([(a != b).sum(1) for a, b in zip(fresh, labels, strict=True)]).sum(0)
            going = (changed > tolerance * patches.count).nonzero()[:, 0]
            if len(going) == 0:
                break
            if len(going) < len(active):
                active, centres, patches = active[going], centres[going], patches.select(going)
                fresh = [block[going] for block in fresh]
        labels = fresh
    return result


def _assign(patches: NoisyPatches, centres: Tensor) -> tuple[list[Tensor], Tensor, Tensor]:
    """Labels block by block, and the sum (B, k, d) and number (B, k, 1) of each cluster's patches."""
    batch, codes, dimensions = centres.shape
    sums = centres.new_zeros(batch * codes, dimensions)
    counts = centres.new_zeros(batch * codes)
    first = torch.arange(batch, device=centres.device)[:, None] * codes
    labels = []
    for block in patches:
        label = nearest(block, centres)
        labels.append(label)
        flat = (label + first).flatten()
        # The summands are exact, so the order of a GPU's threads does not matter.
        sums.index_add_(0, flat, block.flatten(0, 1))
        counts.index_add_(0, flat, counts.new_ones(()).expand(len(flat)))
    return labels, sums.view(batch, codes, dimensions), counts.view(batch, codes, 1)
