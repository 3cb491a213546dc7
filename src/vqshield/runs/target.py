"""What is evaluated: a classifier, and the images that it is asked about."""

import hashlib
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import torch
from torch import nn

from vqshield import checks
from vqshield.classifiers import BUNDLED, Normalised, is_source, load_classifier, weights_digest
from vqshield.data import SAMPLE_NAME, FileSet, ImageSet, list_datasets, load
from vqshield.devices import pick_device
from vqshield.errors import InvalidInputError

__all__ = ["BUNDLED", "Subject", "load_subject"]


@dataclass(frozen=True, eq=False, kw_only=True)
class Subject:
    """A classifier on its device, and images to try it on; name and sha256 say which weights."""

    data: ImageSet
    classifier: nn.Module
    name: str
    sha256: str
    device: torch.device

    def __post_init__(self) -> None:
        image = self.data.floats(slice(1))
        try:
            with torch.no_grad():
                classes = self.classifier(image.to(self.device)).shape[1]
        except RuntimeError as error:
            raise InvalidInputError(
                f"classifier {self.name!r} takes no images of shape {tuple(image.shape[1:])} as in "
                f"{self.data.name!r}: {error}"
            ) from error
        if classes != len(self.data.classes):
            raise InvalidInputError(
                f"classifier {self.name!r} tells {classes} classes apart, {self.data.name!r} has "
                f"{len(self.data.classes)}; give a classifier of that data set"
            )

    def described(self) -> dict[str, Any]:
        """Which data and which weights, so that no other ones are taken for them."""
        return {
            "data": {"name": self.data.name, "images": len(self.data), "sha256": self.data.digest()},
            "classifier": {"name": self.name, "sha256": self.sha256},
        }


def load_subject(
    *,
    data: str = SAMPLE_NAME,
    data_dir: Path | None = None,
    classifier: str = BUNDLED,
    limit: int | None = None,
    device: str = "auto",
) -> Subject:
    """The first `limit` test images of a data set, and a classifier as load_classifier takes it.

    Image files are cut and resized to the classifier's input here, once, so that attack and defense work on
    the very pixels that its network sees.
    """
    if limit is not None:
        checks.whole("limit", limit, least=1)
    checks.one_of("data", data, list_datasets())
    place = pick_device(device)
    if not is_source(classifier) and not Path(classifier).is_file():
        raise InvalidInputError(
            f"classifier={classifier!r} is no file; give a safetensors file, timm:NAME, torchvision:NAME, "
            f"module:function, a name from vqshield list classifiers, or {BUNDLED}, the bundled one"
        )
    images = load(data, "test", data_dir, limit=limit)
    model = load_classifier(classifier, device=place)
    return Subject(
        data=_fitted(images, model),
        classifier=model,
        name=classifier if is_source(classifier) else Path(classifier).name,
        sha256=_sha256(classifier, model),
        device=place,
    )


def _fitted(images: ImageSet, model: Normalised) -> ImageSet:
    if isinstance(images, FileSet) and model.size is not None:
        return images.sized(model.size, crop=model.crop, resize=model.resize)
    return images


def _sha256(classifier: str, model: nn.Module) -> str:
    """Of the file, where there is one: then anybody can check it."""
    if classifier == BUNDLED:
        asset = resources.files("vqshield.classifiers") / "assets" / f"{BUNDLED}.safetensors"
        return hashlib.sha256(asset.read_bytes()).hexdigest()
    if is_source(classifier):
        return weights_digest(model)
    return hashlib.sha256(Path(classifier).read_bytes()).hexdigest()
