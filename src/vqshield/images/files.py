"""Image files as tensors: read a PNG or JPEG the way a viewer shows it, write a PNG that is whole or absent.

What is carried through: colour or grey as float in [0,1], the alpha channel byte for byte, the ICC profile
where it describes the pixels that are written. What is not: EXIF (its orientation is applied to the pixels
instead) and other metadata, frames after the first, and the low byte of 16-bit colour, which Pillow drops.
"""

import io
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from vqshield.core.entry_points import require
from vqshield.core.errors import FileFormatError, InvalidInputError, VqshieldError

if TYPE_CHECKING:
    from PIL import Image, ImageFile

Bytes = npt.NDArray[np.uint8]

DEFAULT_MAX_PIXELS = 89_478_485  # Pillow's own limit: a quarter of a GiB at three bytes a pixel
FORMATS = ("PNG", "JPEG")
SUFFIXES = (".png", ".jpg", ".jpeg")

_ORIENTATION_TAG = 0x0112
_TURNS = {2: "FLIP_LEFT_RIGHT", 3: "ROTATE_180", 4: "FLIP_TOP_BOTTOM", 5: "TRANSPOSE", 6: "ROTATE_270",
          7: "TRANSVERSE", 8: "ROTATE_90"}  # fmt: skip
_ICC_COLOUR_SPACE = {1: b"GRAY", 3: b"RGB "}  # bytes 16 to 20 of a profile that fits 1 or 3 channels
_pillow_limit = threading.Lock()


@dataclass(frozen=True)
class Picture:
    """One image: colour (q, h, w) float32 in [0,1] with q = 1 or 3, alpha (h, w) uint8 or None."""

    colour: Tensor
    alpha: Tensor | None = None
    icc_profile: bytes | None = None

    @property
    def height(self) -> int:
        """Rows of pixels."""
        return int(self.colour.shape[1])

    @property
    def width(self) -> int:
        """Columns of pixels."""
        return int(self.colour.shape[2])


def read_image(path: Path, *, max_pixels: int = DEFAULT_MAX_PIXELS) -> Picture:
    """Read a PNG or JPEG file upright; a broken one, or more than max_pixels, is a FileFormatError."""
    with open_image(path, max_pixels=max_pixels) as file:
        return _decode(file)


@contextmanager
def open_image(path: Path, *, max_pixels: int = DEFAULT_MAX_PIXELS) -> Iterator["ImageFile.ImageFile"]:
    """A PNG or JPEG file for Pillow's functions; what they raise for a broken one is a FileFormatError."""
    if max_pixels < 1:
        raise InvalidInputError(f"max_pixels={max_pixels} must be at least 1")
    if not path.exists():
        raise InvalidInputError(f"{path}: no such file")
    if not path.is_file():  # a pipe or device would block or never end
        raise InvalidInputError(f"{path}: not a regular file")
    pil = pillow()
    try:
        with _pixel_limit(max_pixels), pil.open(path, formats=FORMATS) as file:
            yield file
    except (pil.DecompressionBombError, pil.DecompressionBombWarning):
        raise FileFormatError(f"{path}: more than the allowed {max_pixels} pixels; not decoded") from None
    except pil.UnidentifiedImageError:
        empty = path.stat().st_size == 0
        what = "empty file" if empty else "not a PNG or JPEG image, or its header is broken"
        raise FileFormatError(f"{path}: {what}; readable are {' and '.join(FORMATS)}") from None
    except (MemoryError, VqshieldError):
        raise
    except Exception as error:  # on hostile bytes decoders raise SyntaxError, struct.error and others
        raise FileFormatError(f"{path}: broken or unreadable image ({error})") from error


def picture_to_png(picture: Picture) -> bytes:
    """A lossless PNG of a picture, with its alpha channel and ICC profile."""
    colour = picture.colour.detach().cpu().clamp(0, 1).mul(255).round().to(torch.uint8)  # (q, h, w)
    layers = colour if picture.alpha is None else torch.cat([colour, picture.alpha.cpu()[None]])
    return encode_png(layers.permute(1, 2, 0).numpy(), icc_profile=picture.icc_profile)


def encode_png(pixels: Bytes, *, icc_profile: bytes | None = None) -> bytes:
    """A PNG of uint8 pixels, shape (h, w) for grey or (h, w, 1 to 4) for grey, grey+alpha, RGB, RGBA."""
    if pixels.dtype != np.uint8 or not (pixels.ndim == 2 or (pixels.ndim == 3 and 1 <= pixels.shape[2] <= 4)):
        raise InvalidInputError(
            f"pixels are {pixels.dtype} of shape {pixels.shape}; valid is uint8, (h, w) or (h, w, 1 to 4)"
        )
    if pixels.ndim == 3 and pixels.shape[2] == 1:
        pixels = pixels[:, :, 0]
    buffer = io.BytesIO()
    pillow().fromarray(np.ascontiguousarray(pixels)).save(buffer, format="PNG", icc_profile=icc_profile)
    return buffer.getvalue()


def pillow() -> Any:
    """The module PIL.Image."""
    return require("PIL.Image", "cli", "pillow")


@contextmanager
def _pixel_limit(max_pixels: int) -> Iterator[None]:
    # Pillow keeps its limit in a module global and only warns up to twice that; both are put back afterwards.
    pil = pillow()
    with _pillow_limit, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", pil.DecompressionBombWarning)
        before, pil.MAX_IMAGE_PIXELS = pil.MAX_IMAGE_PIXELS, max_pixels
        try:
            yield
        finally:
            pil.MAX_IMAGE_PIXELS = before


def _decode(file: "ImageFile.ImageFile") -> Picture:
    profile = file.info.get("icc_profile")
    grey_in_disguise = any("LA;16B" in tile for tile in file.tile)  # Pillow reads 16-bit grey+alpha as RGBA
    file.load()
    image = _upright(file)
    if image.mode in ("I;16", "I"):  # 16-bit grey; older Pillow calls it I
        levels = np.asarray(image).astype(np.int32)
        colour = (levels / 65535).astype(np.float32)[:, :, None]
        see_through = image.info.get("transparency")
        alpha = None if see_through is None else np.where(levels == see_through, 0, 255).astype(np.uint8)
    else:
        grey = grey_in_disguise or image.mode in ("1", "L", "LA")
        translucent = image.mode in ("LA", "RGBA", "PA") or "transparency" in image.info
        pixels = np.asarray(image.convert(("L" if grey else "RGB") + ("A" if translucent else "")))
        pixels = pixels[:, :, None] if pixels.ndim == 2 else pixels
        channels = 1 if grey else 3
        colour = pixels[:, :, :channels].astype(np.float32) / np.float32(255)
        alpha = pixels[:, :, channels].copy() if translucent else None
    fits = isinstance(profile, bytes) and profile[16:20] == _ICC_COLOUR_SPACE[colour.shape[2]]
    return Picture(
        colour=torch.from_numpy(colour).permute(2, 0, 1).contiguous(),
        alpha=None if alpha is None else torch.from_numpy(alpha),
        icc_profile=profile if fits else None,
    )


def _upright(image: "Image.Image") -> "Image.Image":
    try:
        orientation = image.getexif().get(_ORIENTATION_TAG)
    except Exception:  # damaged EXIF takes many forms, and viewers then show the pixels as they are stored
        return image
    return image.transpose(pillow().Transpose[_TURNS[orientation]]) if orientation in _TURNS else image
