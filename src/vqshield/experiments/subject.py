"""What is evaluated: a classifier, and the images that it is asked about."""

import hashlib
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import torch
from torch import nn

from vqshield import checks
from vqshield.classifiers import load_classifier, small_cifar10
from vqshield.data import SAMPLE_NAME, ImageSet, datasets, load
from vqshield.errors import InvalidInputError
from vqshield.training.run import pick_device

BUNDLED = "small-cifar10"


@dataclass(frozen=True, eq=False, kw_only=True)
class Subject:
    """A classifier on its device, and images to try it on; name and sha256 say which weights."""

    data: ImageSet
    classifier: nn.Module
    name: str
    sha256: str
    device: torch.device

    def __post_init__(self) -> None:
        try:
            with torch.no_grad():
                classes = self.classifier(self.data.floats(slice(1)).to(self.device)).shape[1]
        except RuntimeError as error:
            shape = tuple(self.data.images.shape[1:])
            raise InvalidInputError(
                f"classifier {self.name!r} takes no images of shape {shape} as in {self.data.name!r}: {error}"
            ) from error
        if classes != len(self.data.classes):
            raise InvalidInputError(
                f"classifier {self.name!r} tells {classes} classes apart, {self.data.name!r} has "
                f"{len(self.data.classes)}; give a classifier of that data set"
            )

    def described(self) -> dict[str, Any]:
        """Which data and which weights, so that no other ones are taken for them."""
        digest = hashlib.sha256(self.data.labels.numpy().tobytes())
        digest.update(self.data.images.contiguous().numpy().data)
        return {
            "data": {"name": self.data.name, "images": len(self.data), "sha256": digest.hexdigest()},
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
    """The first `limit` test images of a data set, and a classifier, from a safetensors file or bundled."""
    if limit is not None:
        checks.whole("limit", limit, least=1)
    checks.one_of("data", data, datasets())
    place = pick_device(device)
    bundled, path = classifier == BUNDLED, Path(classifier)
    if not bundled and not path.is_file():
        raise InvalidInputError(
            f"classifier={classifier!r} is no file; give a safetensors file, or {BUNDLED}, the bundled one"
        )
    asset = resources.files("vqshield.classifiers") / "assets" / f"{BUNDLED}.safetensors"
    return Subject(
        data=load(data, "test", data_dir).take(limit),
        classifier=small_cifar10(str(place)) if bundled else load_classifier(path, device=place),
        name=BUNDLED if bundled else path.name,
        sha256=hashlib.sha256((asset if bundled else path).read_bytes()).hexdigest(),
        device=place,
    )
