"""What every reader returns: images, labels and class names, checked once."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from vqshield.core.errors import FileFormatError, InvalidInputError
from vqshield.core.files import file_exists

SPLITS = ("train", "test")
MAX_CLASSES = 100_000
"""No data set has more: a label beyond it is a broken or hostile file, and each class's name takes memory."""


@dataclass(frozen=True, eq=False)
class ImageSet:
    """Labelled images, kept as bytes: a quarter of the memory of floats, and exact.

    images: (n, channels, height, width) uint8; labels: (n,) int64, positions in ``classes``.
    """

    name: str
    images: Tensor
    labels: Tensor
    classes: tuple[str, ...]

    def __post_init__(self) -> None:
        images = self.images
        if images.ndim != 4 or images.dtype != torch.uint8:
            raise InvalidInputError(
                f"images of {self.name!r} are {images.dtype} of shape {tuple(images.shape)}; "
                "they must be torch.uint8 of shape (n, channels, height, width)"
            )
        check_labels(self.name, len(images), self.labels, self.classes)

    def __len__(self) -> int:
        return len(self.labels)

    def floats(self, part: slice = slice(None)) -> Tensor:
        """The images of one part as float32 in [0,1], the unit of every eps and sigma."""
        return self.images[part].float() / 255

    def take(self, count: int | None) -> "ImageSet":
        """The first ``count`` images (all of them for None, or where there are fewer)."""
        if count is None:
            return self
        check_count(self.name, count)
        return ImageSet(self.name, self.images[:count], self.labels[:count], self.classes)

    def at(self, numbers: Tensor) -> Tensor:
        """The images of these numbers (N,), uint8."""
        return self.images[numbers]

    def digest(self) -> str:
        """SHA-256 of labels and images, so that records never take other images for these."""
        return digest_of(self)


class Reader(Protocol):
    """Reads one layout of files."""

    def __call__(self, *, split: str, folder: Path, limit: int | None = None) -> ImageSet:
        """The images of a split, "train" or "test", or the first ones; no more than these are read."""
        ...


def first_file(places: Iterable[Path], names: Iterable[str]) -> Path | None:
    """The first file that there is: every name in the first place, then in the second."""
    paths = (place / name for place, name in product(places, names))
    return next(filter(file_exists, paths), None)


def digest_of(*sets: ImageSet) -> str:
    """SHA-256 of the labels and images of several sets, one after the other."""
    digest = hashlib.sha256()
    for each in sets:
        digest.update(each.labels.numpy().tobytes())
        digest.update(each.images.contiguous().numpy().data)
    return digest.hexdigest()


def check_labels(name: str, count: int, labels: Tensor, classes: tuple[str, ...]) -> None:
    """Refuse labels that do not belong to ``count`` images of these classes."""
    if labels.ndim != 1 or labels.dtype != torch.int64:
        raise InvalidInputError(
            f"labels of {name!r} are {labels.dtype} of shape {tuple(labels.shape)}; "
            "they must be torch.int64 of shape (n,)"
        )
    if count == 0:
        raise InvalidInputError(f"{name!r} holds no images; it must hold at least one")
    if count != len(labels):
        raise InvalidInputError(f"{name!r} has {count} images but {len(labels)} labels")
    check_class_count(name, len(classes))
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= len(classes):
        wrong = low if low < 0 else high
        raise InvalidInputError(f"label {wrong} in {name!r} is outside 0..{len(classes) - 1}")


def check_label_range(where: str, labels: Iterable[int], below: int) -> None:
    """Refuse a file whose labels are outside 0 … below−1."""
    for label in labels:
        if not 0 <= label < below:
            raise FileFormatError(f"{where}: label {label} is outside 0..{below - 1}")


def check_class_count(name: str, count: int) -> None:
    """Refuse more classes than any data set has."""
    if count > MAX_CLASSES:
        raise InvalidInputError(f"{name!r} has {count} classes; there can be at most {MAX_CLASSES}")


def check_count(name: str, count: int) -> None:
    """Refuse to take fewer images than one."""
    if count < 1:
        raise InvalidInputError(f"{count} images of {name!r} were asked for; ask for at least 1")
