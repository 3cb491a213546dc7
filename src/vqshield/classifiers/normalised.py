"""A classifier with its resizing and normalisation, and whether it fits a set of images."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vqshield.core.checks import one_of, real, whole
from vqshield.core.errors import InvalidInputError
from vqshield.data.base import RESIZES, FileSet, ImageSet
from vqshield.models.calling import Normalising, ask_for_logits, evaluating

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
        if size is not None and len(size) != 2:
            raise InvalidInputError(f"size={list(size)} must be height and width")
        sides = None if size is None else [whole("size", side, least=1, below=MOST_SIDE + 1) for side in size]
        self.size = None if sides is None else (sides[0], sides[1])
        self.crop = real("crop", crop, least=0.01, most=1.0)
        self.resize = one_of("resize", resize, RESIZES)

    def forward(self, images: Tensor) -> Tensor:
        """Logits (n, classes) for images (n, channels, height, width) in [0,1]."""
        if self.size is not None and images.shape[-2:] != self.size:
            # As Pillow does it: smoothed where it shrinks, and no overshoot of the bicubic filter kept.
            images = F.interpolate(images, self.size, mode=self.resize, antialias=True).clamp(0, 1)
        logits: Tensor = super().forward(images)
        return logits


def as_shown_to(model: nn.Module, images: ImageSet) -> ImageSet:
    """The images as the classifier is shown them: image files at its input size, where it has one."""
    if isinstance(images, FileSet) and isinstance(model, Normalised) and model.size is not None:
        return images.sized(model.size, crop=model.crop, resize=model.resize)
    return images


def class_count(model: nn.Module, image: Tensor, *, name: str, data: str) -> int:
    """The number of classes of the classifier, from its logits for a float image (1, q, h, w).

    Raises:
        InvalidInputError: it takes no images like this one.
    """
    try:
        with torch.no_grad(), evaluating(model):
            return ask_for_logits(model, image).shape[1]
    except RuntimeError as error:
        raise InvalidInputError(
            f"classifier {name!r} takes no images of shape {tuple(image.shape[1:])} as in {data!r}: {error}"
        ) from error


def check_classes(model: nn.Module, name: str, images: ImageSet, device: torch.device) -> None:
    """Refuse a classifier that does not take these images, or that has other classes."""
    classes = class_count(model, images.floats(slice(1)).to(device), name=name, data=images.name)
    if classes != len(images.classes):
        raise InvalidInputError(
            f"classifier {name!r} has {classes} classes, {images.name!r} has {len(images.classes)}; "
            "give a classifier of that data set"
        )
