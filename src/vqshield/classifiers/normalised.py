"""Resizing and normalisation as part of the classifier, so that eps and sigma are in pixels for others."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vqshield.checks import one_of, real, whole
from vqshield.errors import InvalidInputError

RESIZES = ("bicubic", "bilinear")
MOST_SIDE = 1 << 14  # pixels that an image may be resized to


class Normalised(nn.Module):
    """images in [0,1] -> logits of ``network`` at (images - mean) / std, channel by channel.

    size: (height, width) that the network was trained for; images of another size are resized to it, with
    gradients. None: the network takes them as they are.
    crop: the middle share of a photograph that was shown in training. It is for readers of image files
    (``FileSet.sized``): images that arrive here are never cut.
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self,
        network: nn.Module,
        *,
        mean: Sequence[float],
        std: Sequence[float],
        size: Sequence[int] | None = None,
        crop: float = 1.0,
        resize: str = "bicubic",
    ) -> None:
        super().__init__()
        if len(mean) != len(std) or not mean:
            raise InvalidInputError(
                f"mean={list(mean)} and std={list(std)} must be of one length, at least 1"
            )
        single = {
            "mean": torch.tensor(mean, dtype=torch.float32),
            "std": torch.tensor(std, dtype=torch.float32),
        }
        for name, values in single.items():
            if not bool(values.isfinite().all()):
                raise InvalidInputError(f"{name}={values.tolist()} must be finite in every channel")
        if not bool((single["std"] > 0).all()):
            raise InvalidInputError(f"std={list(std)} must be positive in every channel")
        self.network = network
        self.size = None if size is None else _checked_size(size)
        self.crop = real("crop", crop, least=0.01, most=1.0)
        self.resize = one_of("resize", resize, RESIZES)
        self.register_buffer("mean", single["mean"].reshape(1, -1, 1, 1))
        self.register_buffer("std", single["std"].reshape(1, -1, 1, 1))

    def forward(self, images: Tensor) -> Tensor:
        """Logits (n, classes) for images (n, channels, height, width) in [0,1]."""
        if self.size is not None and images.shape[-2:] != self.size:
            # As Pillow does it: smoothed where it shrinks, and no overshoot of the bicubic filter kept.
            images = F.interpolate(images, self.size, mode=self.resize, antialias=True).clamp(0, 1)
        logits: Tensor = self.network((images - self.mean) / self.std)
        return logits


def _checked_size(size: Sequence[int]) -> tuple[int, int]:
    if len(size) != 2:
        raise InvalidInputError(f"size={list(size)} must be height and width")
    height, width = (whole("size", side, least=1, below=MOST_SIDE + 1) for side in size)
    return height, width
