"""k-means in plain torch, batched over images: the reference that faster backends are checked against."""

import torch
from torch import Tensor

from vqshield.clustering.base import KMeans, NoisyPatches
from vqshield.clustering.starts import START


def nearest(patches: Tensor, centres: Tensor) -> Tensor:
    """The index of the centre nearest to each patch, the lowest among equals: (B, m, d), (B, k, d) → (B, m).

    ‖p−c‖² less ‖p‖², which all centres share; exact for values on a grid (fixedpoint), so ties are true.
    """
    squares = (centres * centres).sum(-1, keepdim=True)
    scores = torch.baddbmm(squares, centres, patches.transpose(1, 2), alpha=-2)  # (B, k, m)
    return scores.min(dim=1).indices


class Lloyd:
    """Lloyd's algorithm; an empty cluster keeps its centre."""

    def fit(self, patches: NoisyPatches, settings: KMeans) -> Tensor:
        """The codebook of every image, each stopped on its own."""
        centres = START[settings.init](patches, settings.codes)
        result = centres.clone()
        active = torch.arange(len(centres), device=centres.device)
        labels: list[Tensor] = []
        for _ in range(settings.iterations):
            fresh, sums = self._assign(patches, centres)
            centres = self._means(patches, sums, centres)
            result[active] = centres
            if labels:
                changed = torch.stack([(a != b).sum(1) for a, b in zip(fresh, labels, strict=True)]).sum(0)
                going = (changed > settings.tolerance * patches.count).nonzero()[:, 0]
                if len(going) == 0:
                    break
                if len(going) < len(active):
                    active, centres, patches = active[going], centres[going], patches.select(going)
                    fresh = [block[going] for block in fresh]
            labels = fresh
        return result

    def _assign(self, patches: NoisyPatches, centres: Tensor) -> tuple[list[Tensor], Tensor]:
        """Labels block by block, and sums (B, k, d+1) of each cluster's patches with their number behind."""
        batch, codes, dimensions = centres.shape
        sums = centres.new_zeros(batch * codes, dimensions)
        counts = centres.new_zeros(batch * codes)
        first = torch.arange(batch, device=centres.device)[:, None] * codes
        labels = []
        for block in patches:
            label = nearest(block, centres)
            labels.append(label)
            flat = (label + first).flatten()
            # The summands are exact, so the order in which a GPU's threads arrive here does not matter.
            sums.index_add_(0, flat, block.flatten(0, 1))
            counts.index_add_(0, flat, counts.new_ones(()).expand(len(flat)))
        return labels, torch.cat([sums, counts[:, None]], 1).view(batch, codes, dimensions + 1)

    def _means(self, patches: NoisyPatches, sums: Tensor, centres: Tensor) -> Tensor:
        counts = sums[..., -1:]
        means = patches.fixed.round(sums[..., :-1] / counts.clamp(min=1))
        return torch.where(counts > 0, means, centres)
