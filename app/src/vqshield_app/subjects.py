"""The picture that is looked at: one of the bundled images, or an upload that keeps to the limits."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from torch import Tensor
from torch.nn import functional as F

from vqshield.core import checks
from vqshield.core.errors import FileFormatError, VqshieldError
from vqshield.data import ImageSet, sample
from vqshield.images.files import Picture, read_image
from vqshield.images.pictures import as_bytes

SIDE = 32  # pixels, of the bundled classifiers' input
OFFERED = 20  # bundled images to pick from, two per class


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What is taken from visitors, and for how long one may keep a core busy."""

    max_bytes: int = 8 << 20  # of an uploaded file
    max_pixels: int = 16_000_000  # by the file's header, before anything is unpacked
    max_side: int = 512  # pixels; a picture with a longer side is reduced, which bounds the shielding's time
    attack_seconds: float = 30.0
    waiting: int = 64  # calls; more are refused with a message


@dataclass(frozen=True)
class Subject:
    """A picture, and how the classifier sees it."""

    picture: Tensor  # (3, h, w) in [0, 1], shielded at this size
    small: Tensor  # (3, 32, 32), the classifier's input, which attacks change
    label: int | None  # where it is known
    note: str = ""  # for the visitor: what was done to an upload


def bundled(number: int) -> Subject:
    """One of the bundled images that are offered."""
    checks.whole("picture", number, least=0, below=OFFERED)
    offered = offered_images()
    image = offered.floats(slice(number, number + 1))[0]
    return Subject(picture=image, small=image, label=int(offered.labels[number]))


def uploaded(path: Path, limits: Limits) -> Subject:
    """An uploaded PNG or JPEG file, upright.

    Raises:
        FileFormatError: it is too large, broken, or no such image; the message says which, without the path.
    """
    if not path.is_file():  # uploads are cleared away after a while
        raise FileFormatError(f"{path.name} is no longer here; upload it again")
    size = path.stat().st_size
    if size > limits.max_bytes:
        raise FileFormatError(
            f"{path.name}: {size / 2**20:.1f} MiB; at most {limits.max_bytes / 2**20:g} MiB are taken"
        )
    try:
        read = read_image(path, max_pixels=limits.max_pixels)
    except VqshieldError as error:  # hide where uploads lie on the server
        raise FileFormatError(str(error).replace(str(path), path.name)) from error
    whole = _on_white(read)
    height, width = whole.shape[1:]
    picture, scale = whole, limits.max_side / max(height, width)
    if scale < 1:
        picture = _resized(whole, max(round(height * scale), 1), max(round(width * scale), 1))
    small = picture
    if picture.shape[1:] != (SIDE, SIDE):
        side = min(height, width)
        top, left = (height - side) // 2, (width - side) // 2
        small = _resized(whole[:, top : top + side, left : left + side], SIDE, SIDE)
    return Subject(picture=picture, small=small, label=None, note=_note(whole, picture))


@cache
def offered_images() -> ImageSet:
    """The bundled images that are offered, read once."""
    return sample(OFFERED)


def _on_white(read: Picture) -> Tensor:
    """RGB, with white behind what is transparent."""
    colour = read.colour.expand(3, -1, -1)
    if read.alpha is None:
        return colour.contiguous()
    alpha = read.alpha.float() / 255
    return colour * alpha + (1 - alpha)


def _resized(picture: Tensor, height: int, width: int) -> Tensor:
    resized = F.interpolate(picture[None], size=(height, width), mode="bilinear", antialias=True)[0]
    return as_bytes(resized.clamp(0, 1)).float() / 255  # values that a file can hold: attacks keep to them


def _note(whole: Tensor, picture: Tensor) -> str:
    def shown(image: Tensor) -> str:
        return f"{image.shape[2]}×{image.shape[1]}"

    reduced = "" if whole.shape == picture.shape else f"was reduced to {shown(picture)} and "
    said = f"Your picture of {shown(whole)} pixels {reduced}is shielded at that size."
    if picture.shape[1:] == (SIDE, SIDE):
        return f"{said} The classifier knows the ten classes of CIFAR-10, and no others."
    return (
        f"{said} The classifier takes {SIDE}×{SIDE}: its answers and the attacks are about the middle "
        f"square, resized to that and then shielded. It knows the ten classes of CIFAR-10, and no others."
    )
