"""Whether a classifier and a set of images belong together."""

import torch
from torch import Tensor, nn

from vqshield.classifiers.normalised import Normalised
from vqshield.core.errors import InvalidInputError
from vqshield.data.base import ImageSet
from vqshield.data.pictures import FileSet
from vqshield.models.calling import ask_for_logits, evaluating


def as_shown_to(model: nn.Module, images: ImageSet) -> ImageSet:
    """The images as the classifier is shown them: image files at its input size, where it has one."""
    if isinstance(images, FileSet) and isinstance(model, Normalised) and model.size is not None:
        return images.sized(model.size, crop=model.crop, resize=model.resize)
    return images


def class_count(model: nn.Module, image: Tensor, *, name: str, data: str) -> int:
    """How many classes the classifier of that name distinguishes, seen from an image (1, q, h, w).

    Raises:
        InvalidInputError: it takes no images like this one.
    """
    floats = image if image.is_floating_point() else image.float() / 255
    try:
        with torch.no_grad(), evaluating(model):
            return ask_for_logits(model, floats).shape[1]
    except RuntimeError as error:
        raise InvalidInputError(
            f"classifier {name!r} takes no images of shape {tuple(image.shape[1:])} as in {data!r}: {error}"
        ) from error


def check_classes(model: nn.Module, name: str, images: ImageSet, device: torch.device) -> None:
    """Refuse a classifier that does not take these images, or that has other classes."""
    found = class_count(model, images.floats(slice(1)).to(device), name=name, data=images.name)
    if found != len(images.classes):
        raise InvalidInputError(
            f"classifier {name!r} tells {found} classes apart, {images.name!r} has {len(images.classes)}; "
            "give a classifier of that data set"
        )
