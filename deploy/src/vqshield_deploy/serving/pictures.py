"""Uploads as a classifier sees them."""

from typing import BinaryIO

import numpy as np
import torch
from fastapi import HTTPException
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

from vqshield.data.base import cut
from vqshield.images.files import FORMATS
from vqshield_deploy.serving.predictor import Input

MODES = ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr")  # Pillow's 16-bit modes do not become RGB


def decode(file: BinaryIO, shown: Input, *, max_pixels: int) -> Tensor:
    """An upload as a classifier is shown it, uint8 (channels, height, width).

    An HTTPException says what is wrong with it.
    """
    try:
        with Image.open(file, formats=FORMATS) as picture:
            width, height = picture.size
            if width * height > max_pixels:  # the header says so: nothing is unpacked yet
                raise HTTPException(413, f"{width}x{height} pixels; at most {max_pixels} are taken")
            if picture.mode not in MODES:
                raise HTTPException(415, f"an image of mode {picture.mode}; send 8 bits per channel")
            upright = ImageOps.exif_transpose(picture).convert("RGB" if shown.channels == 3 else "L")
        pixels = np.array(cut(upright, shown.size, crop=shown.crop, resize=shown.resize))
        pixels = pixels.reshape(*shown.size, shown.channels)
        return torch.from_numpy(pixels).permute(2, 0, 1).contiguous()
    except HTTPException:
        raise
    except Image.DecompressionBombError:
        raise HTTPException(413, f"far more than the {max_pixels} pixels that are taken") from None
    except UnidentifiedImageError:
        raise HTTPException(415, "not a PNG or JPEG image, or its header is broken") from None
    except Exception:  # hostile bytes make Pillow raise nearly anything, and its messages may name files
        raise HTTPException(400, "broken image: its header is readable, its pixels are not") from None
