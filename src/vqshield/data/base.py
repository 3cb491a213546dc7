"""What every reader returns: images, labels and class names, in memory or as files, checked once."""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from torch import Tensor

from vqshield.core.checks import one_of, real, whole
from vqshield.core.errors import FileFormatError, InvalidInputError
from vqshield.core.files import file_exists, file_sha256
from vqshield.images.files import open_image, pillow

if TYPE_CHECKING:
    from PIL.Image import Image

SAMPLE_NAME = "cifar10-sample"
SPLITS = ("train", "test")
RESIZES = ("bicubic", "bilinear")
MAX_CLASSES = 100_000
"""No data set has more: a label beyond it is a broken or hostile file, and each class's name takes memory."""

Size = tuple[int, int]  # height, width


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

    def take(self, count: int | None) -> Self:
        """The first ``count`` images (all of them for None, or where there are fewer)."""
        if count is None:
            return self
        if count < 1:
            raise InvalidInputError(f"{count} images of {self.name!r} were asked for; ask for at least 1")
        return self._first(count)

    def _first(self, count: int) -> Self:
        return replace(self, images=self.images[:count], labels=self.labels[:count])

    def at(self, numbers: Tensor) -> Tensor:
        """The images of these numbers (N,), uint8."""
        return self.images[numbers]

    def digest(self) -> str:
        """SHA-256 of labels and images, so that records never take other images for these."""
        return digest_of(self)


class FileSet(ImageSet):
    """Labelled image files with the interface of an ImageSet, decoded, cut and resized when they are used.

    size: what every picture is brought to; None: its own, and then all must be alike.
    crop: the share of the largest middle part of that shape that is kept, as ImageNet classifiers expect.
    cropped: the files are already what a classifier should see, so a classifier's crop does not apply.
    """

    files: tuple[Path, ...]
    cropped: bool
    size: Size | None
    crop: float
    resize: str

    def __init__(
        self,
        *,
        name: str,
        files: Sequence[Path],
        labels: Tensor,
        classes: tuple[str, ...],
        cropped: bool = False,
        size: Size | None = None,
        crop: float = 1.0,
        resize: str = "bicubic",
    ) -> None:
        check_labels(name, len(files), labels, classes)
        vars(self).update(  # frozen, as its base is
            name=name, files=tuple(files), labels=labels, classes=classes, cropped=cropped, size=size,
            crop=real("crop", crop, least=0.01, most=1.0), resize=one_of("resize", resize, RESIZES),
        )  # fmt: skip

    def __repr__(self) -> str:  # the base's would read every file
        return f"FileSet({self.name!r}, {len(self)} files, size={self.size})"

    @property
    def images(self) -> Tensor:
        """All images (n, 3, height, width) uint8, read now: for sets that do fit into memory."""
        return self.read(slice(None))

    def floats(self, part: slice = slice(None)) -> Tensor:
        """The images of one part as float32 in [0,1]."""
        return self.read(part).float() / 255

    def read(self, part: slice) -> Tensor:
        """The images of one part, uint8."""
        images: list[Tensor] = []
        for file in self.files[part]:
            images.append(self._read(file))
            if images[-1].shape != images[0].shape:
                sizes = [f"{image.shape[2]}x{image.shape[1]}" for image in (images[-1], images[0])]
                raise InvalidInputError(
                    f"{file} is {sizes[0]} but {self.files[part][0]} is {sizes[1]} pixels; "
                    f"give {self.name!r} a size, or a classifier that has one"
                )
        return torch.stack(images)

    def _first(self, count: int) -> Self:
        return self._changed(files=self.files[:count], labels=self.labels[:count])

    def at(self, numbers: Tensor) -> Tensor:
        """The images of these numbers (N,), uint8; no other file is read."""
        files = [self.files[number] for number in numbers.tolist()]
        return self._changed(files=files, labels=self.labels[numbers]).images

    def sized(self, size: Size, *, crop: float = 1.0, resize: str = "bicubic") -> Self:
        """The same files seen at one size, as a classifier wants them."""
        for side in size:
            whole("size", side, least=1)
        return self._changed(size=size, crop=1.0 if self.cropped else crop, resize=resize)

    def digest(self) -> str:
        """SHA-256 of labels, files and the way they are cut."""
        digest = hashlib.sha256(self.labels.numpy().tobytes())
        digest.update(repr((self.size, self.crop, self.resize)).encode())
        for file in self.files:
            digest.update(bytes.fromhex(file_sha256(file)))
        return digest.hexdigest()

    def _changed(self, **changes: Any) -> Self:
        return type(self)(**{**vars(self), **changes})

    def _read(self, file: Path) -> Tensor:
        with open_image(file) as opened:
            picture = opened.convert("RGB")
            if self.size is not None:
                picture = cut(picture, self.size, crop=self.crop, resize=self.resize)
            pixels = np.array(picture)
        return torch.from_numpy(pixels).permute(2, 0, 1).contiguous()  # (3, height, width)


def cut(picture: "Image", size: Size, *, crop: float = 1.0, resize: str = "bicubic") -> "Image":
    """A picture at one size: the middle share `crop` of the largest part of that shape, resized."""
    height, width = size
    scale = min(picture.width / width, picture.height / height) * crop
    across, down = min(width * scale, picture.width), min(height * scale, picture.height)
    left, top = (picture.width - across) / 2, (picture.height - down) / 2
    box = (left, top, min(left + across, picture.width), min(top + down, picture.height))
    return picture.resize((width, height), pillow().Resampling[resize.upper()], box=box)


def asset(name: str) -> bytes:
    """A file that comes with this package."""
    return (resources.files("vqshield.data") / "assets" / name).read_bytes()


def first_file(places: Iterable[Path], names: Iterable[str]) -> Path | None:
    """The first file that exists: every name in the first place, then in the second."""
    paths = (place / name for place, name in product(places, names))
    return next(filter(file_exists, paths), None)


def digest_of(*sets: ImageSet) -> str:
    """SHA-256 of the labels and images of several sets, one after the other."""
    digest = hashlib.sha256()
    for images in sets:
        digest.update(images.labels.numpy().tobytes())
        digest.update(images.images.contiguous().numpy().data)
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
