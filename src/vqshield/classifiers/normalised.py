"""Resizing and normalisation as part of the classifier, so that eps and sigma are in pixels for others."""

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn import functional as F

from vqshield.core.checks import one_of, real, whole
from vqshield.core.errors import InvalidInputError
from vqshield.data.pictures import RESIZES
from vqshield.models.calling import Normalising

MOST_SIDE = 1 << 14  # pixels that an image may be resized to


class Normalised(Normalising):
    """images in [0,1] -> logits of ``network`` at (images - mean) / std, channel by channel.

    size: (height, width) that the network was trained for; images of another size are resized to it, with
    gradients. None: the network takes them as they are.
    crop: the middle share of a photograph that was shown in training. It is for readers of image files
    (``FileSet.sized``): images that arrive here are never cut.
    """

    network: nn.Module

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
        super().__init__(network, mean=mean, std=std)
        self.size = None if size is None else _checked_size(size)
        self.crop = real("crop", crop, least=0.01, most=1.0)
        self.resize = one_of("resize", resize, RESIZES)

    def forward(self, images: Tensor) -> Tensor:
        """Logits (n, classes) for images (n, channels, height, width) in [0,1]."""
        if self.size is not None and images.shape[-2:] != self.size:
            # As Pillow does it: smoothed where it shrinks, and no overshoot of the bicubic filter kept.
            images = F.interpolate(images, self.size, mode=self.resize, antialias=True).clamp(0, 1)
        logits: Tensor = super().forward(images)
        return logits


def _checked_size(size: Sequence[int]) -> tuple[int, int]:
    if len(size) != 2:
        raise InvalidInputError(f"size={list(size)} must be height and width")
    height, width = (whole("size", side, least=1, below=MOST_SIDE + 1) for side in size)
    return height, width
