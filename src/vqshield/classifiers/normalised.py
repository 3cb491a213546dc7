"""Normalisation as a layer of the classifier, so that eps and sigma are in pixels for everyone outside."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from vqshield.errors import InvalidInputError


class Normalised(nn.Module):
    """images in [0,1] -> logits of ``network`` at (images - mean) / std, channel by channel."""

    mean: Tensor
    std: Tensor

    def __init__(self, network: nn.Module, *, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        if len(mean) != len(std) or not mean:
            raise InvalidInputError(
                f"mean={list(mean)} and std={list(std)} must be of one length, at least 1"
            )
        if not all(value > 0 for value in std):
            raise InvalidInputError(f"std={list(std)} must be positive in every channel")
        self.network = network
        self.register_buffer("mean", torch.tensor(mean, dtype=torch.float32).reshape(1, -1, 1, 1))
        self.register_buffer("std", torch.tensor(std, dtype=torch.float32).reshape(1, -1, 1, 1))

    def forward(self, images: Tensor) -> Tensor:
        """Return logits (n, classes) for images (n, channels, height, width) in [0,1]."""
        logits: Tensor = self.network((images - self.mean) / self.std)
        return logits
