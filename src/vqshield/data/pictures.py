"""Sets of image files too large for memory: a picture is decoded, cut and resized when it is asked for."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from vqshield.core.checks import one_of, real, whole
from vqshield.core.errors import InvalidInputError
from vqshield.data.base import ImageSet, check_count, check_labels
from vqshield.images.files import open_image, pillow

if TYPE_CHECKING:
    from PIL.Image import Image

RESIZES = ("bicubic", "bilinear")

Size = tuple[int, int]  # height, width


class FileSet(ImageSet):
    """Labelled image files with the interface of an ImageSet; in memory are only the images asked for.

    size: what every picture is brought to; None: as it is, and then all must be alike.
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
        fields = {
            "name": name,
            "files": tuple(files),
            "labels": labels,
            "classes": classes,
            "cropped": cropped,
            "size": size,
            "crop": real("crop", crop, least=0.01, most=1.0),
            "resize": one_of("resize", resize, RESIZES),
        }
        for field, value in fields.items():
            object.__setattr__(self, field, value)  # frozen, as its base is

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
        found: list[Tensor] = []
        for file in self.files[part]:
            found.append(self._read(file))
            if found[-1].shape != found[0].shape:
                raise InvalidInputError(
                    f"{file} is {_shown(found[-1])} but {self.files[part][0]} is {_shown(found[0])} pixels; "
                    f"give {self.name!r} a size, or a classifier that has one"
                )
        return torch.stack(found)

    def take(self, count: int | None) -> "FileSet":
        """The first ``count`` images (all of them for None, or where there are fewer)."""
        if count is None:
            return self
        check_count(self.name, count)
        return self._changed(files=self.files[:count], labels=self.labels[:count])

    def at(self, numbers: Tensor) -> Tensor:
        """The images of these numbers (N,), uint8; no other file is read."""
        files = [self.files[number] for number in numbers.tolist()]
        return self._changed(files=files, labels=self.labels[numbers]).images

    def sized(self, size: Size, *, crop: float = 1.0, resize: str = "bicubic") -> "FileSet":
        """The same files seen at one size, as a classifier wants them."""
        for side in size:
            whole("size", side, least=1)
        return self._changed(size=size, crop=1.0 if self.cropped else crop, resize=resize)

    def digest(self) -> str:
        """SHA-256 of labels, files and the way they are cut."""
        digest = hashlib.sha256(self.labels.numpy().tobytes())
        digest.update(repr((self.size, self.crop, self.resize)).encode())
        for file in self.files:
            digest.update(hashlib.sha256(file.read_bytes()).digest())
        return digest.hexdigest()

    def _changed(self, **changes: Any) -> "FileSet":
        return FileSet(**{**vars(self), **changes})

    def _read(self, file: Path) -> Tensor:
        with open_image(file) as opened:
            pixels = np.array(self._cut(opened.convert("RGB")))
        return torch.from_numpy(pixels).permute(2, 0, 1).contiguous()  # (3, height, width)

    def _cut(self, picture: "Image") -> "Image":
        if self.size is None:
            return picture
        height, width = self.size
        scale = min(picture.width / width, picture.height / height) * self.crop
        across, down = min(width * scale, picture.width), min(height * scale, picture.height)
        left, top = (picture.width - across) / 2, (picture.height - down) / 2
        box = (left, top, min(left + across, picture.width), min(top + down, picture.height))
        return picture.resize((width, height), pillow().Resampling[self.resize.upper()], box=box)


def _shown(image: Tensor) -> str:
    return f"{image.shape[2]}x{image.shape[1]}"
