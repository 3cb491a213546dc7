"""The patches that k-means starts from: k-means++ or k distinct ones at random.

Both use the words of the INIT stage: word j decides centre j.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from vqshield.quantization.kernels.noisy import NoisyPatches
from vqshield.quantization.noise import Stage


def kmeans_plus_plus(patches: NoisyPatches, codes: int) -> Tensor:
    """Each next centre is a patch drawn with probability proportional to its squared distance from the
    nearest centre so far (Arthur & Vassilvitskii 2007). Where all distances are zero, any patch.
    """
    words = patches.draw.words(Stage.INIT, 0, codes)  # (B, k)
    chosen = _below(words[:, 0], patches.count)
    centres = [patches.gather(chosen)]
    distances: list[Tensor] = []
    for j in range(1, codes):
        fresh = [(block - centres[-1][:, None]).square_().sum(-1) for block in patches]
        pairs = zip(distances or fresh, fresh, strict=True)
        distances = [torch.minimum(near, new) for near, new in pairs]
        # Whole numbers below 2^53 in all: the running sums are exact, so no order of summing matters.
        running = patches.fixed.summable(torch.cat(distances, 1), patches.count).cumsum(1)  # (B, n)
        total = running[:, -1]
        target = (words[:, j].double() * 2.0**-32 * total).long()
        drawn = torch.searchsorted(running, target[:, None], right=True)[:, 0]
        chosen = torch.where(total > 0, drawn, _below(words[:, j], patches.count))
        centres.append(patches.gather(chosen))
    return torch.stack(centres, 1)


def random_patches(patches: NoisyPatches, codes: int) -> Tensor:
    """Patches at k distinct places, every set of places equally likely (Floyd's sampling)."""
    words = patches.draw.words(Stage.INIT, 0, codes)
    chosen = torch.full_like(words, -1)
    for j in range(codes):
        last = patches.count - codes + j
        candidate = _below(words[:, j], last + 1)
        taken = (chosen == candidate[:, None]).any(1)
        chosen[:, j] = torch.where(taken, last, candidate)
    return torch.stack([patches.gather(index) for index in chosen.unbind(1)], 1)


def _below(words: Tensor, limit: int) -> Tensor:
    """Random 32-bit words as integers uniform in 0 … limit−1 (to within limit/2^32)."""
    return (words * limit) >> 32


START: dict[str, Callable[[NoisyPatches, int], Tensor]] = {
    "kmeans++": kmeans_plus_plus,
    "random": random_patches,
}
