"""Pictures as a PNG holds them, and the strips of pictures that pages show."""

import base64
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from vqshield.attacks import Ball
from vqshield.core.errors import InvalidInputError
from vqshield.images.files import encode_png

_ROUNDING = 1e-6  # of float32, in values up to 1


def as_bytes(images: Tensor) -> Tensor:
    """Images in [0, 1] as a PNG holds them: uint8, on the CPU."""
    return images.detach().cpu().mul(255).round().byte()


def png(image: Tensor) -> str:
    """An image (q, h, w), bytes or in [0, 1], as a PNG file in base64."""
    pixels = image if image.dtype.itemsize == 1 else as_bytes(image)
    return base64.b64encode(encode_png(pixels.permute(1, 2, 0).contiguous().numpy())).decode("ascii")


def png_uri(file: str) -> str:
    """A data URI of a PNG file in base64."""
    return f"data:image/png;base64,{file}"


def moved_bytes(clean: Tensor, moved: Tensor, within: Ball) -> Tensor:
    """An attack's images as bytes that do not leave the ball around the clean bytes.

    Rounding to the nearest byte can leave it where eps is not a multiple of 1/255; there changes are
    rounded down.
    """
    change = moved.detach().cpu().double() * 255 - clean
    nearest = change.round()
    if float(within.length(nearest / 255).max()) > within.eps + _ROUNDING:
        nearest = (change + change.sign() * 255 * _ROUNDING).trunc()
    return (clean + nearest).byte()


@dataclass(frozen=True, kw_only=True)
class GalleryPicture:
    """A picture as pages embed it, a data URI; verdict: the predicted class."""

    caption: str
    image: str
    verdict: str | None = None
    correct: bool | None = None

    def __post_init__(self) -> None:
        if not self.image.startswith("data:"):  # a page asks no other host for anything
            raise InvalidInputError(f"image={self.image[:60]!r}: expected a data URI")


@dataclass(frozen=True, kw_only=True)
class GalleryRow:
    """The pictures of one image, in the order of the columns, and its true class."""

    label: str
    pictures: tuple[GalleryPicture, ...]


@dataclass(frozen=True, kw_only=True)
class Stage:
    """What became of some images, with the class that a classifier predicts for each, and its confidence."""

    caption: str
    images: Tensor
    answers: Sequence[int] = ()
    shares: Sequence[float] = ()

    def picture(self, place: int, label: int, classes: Sequence[str]) -> GalleryPicture:
        image = png_uri(png(self.images[place]))
        if not self.answers:
            return GalleryPicture(caption=self.caption, image=image)
        answer = self.answers[place]
        verdict = classes[answer] + (f", {self.shares[place]:.0%}" if self.shares else "")
        return GalleryPicture(caption=self.caption, image=image, verdict=verdict, correct=answer == label)


def gallery_rows(
    stages: Sequence[Stage], labels: Sequence[int], classes: Sequence[str]
) -> tuple[GalleryRow, ...]:
    """The pictures of each image, stage by stage; labels: the true classes of the images."""
    return tuple(
        GalleryRow(
            label=classes[label], pictures=tuple(stage.picture(place, label, classes) for stage in stages)
        )
        for place, label in enumerate(labels)
    )
