"""What users give a defense (bytes or floats, one image or a batch) to pixels, and the result back again.

Pixels are batches (B, q, h, w), float32 or float64, in [0, 1].
"""

import math
from typing import Literal

import torch
from torch import Tensor

from vqshield.core import checks
from vqshield.core.errors import InvalidInputError
from vqshield.quantization.pixels import clamped, narrowed, pass_gradient, widened

Range = Literal["raise", "clamp"]


def batch_of(images: object, *, range: Range = "raise") -> Tensor:
    """The images as a batch of their own dtype, with their gradient, for `operators.shield`.

    Values are left as they are unless range="clamp".

    Raises:
        InvalidInputError: not a tensor, or of a shape or dtype that images do not have.
    """
    if not isinstance(images, Tensor):
        raise InvalidInputError(f"images should be a torch tensor, not {type(images).__name__}")
    if images.dim() not in (3, 4):
        raise InvalidInputError(
            f"images of shape {tuple(images.shape)} should have 4 dimensions, (B, q, h, w), or 3, (q, h, w)"
        )
    if images.dtype != torch.uint8 and not images.is_floating_point():
        raise InvalidInputError(
            f"images of dtype {images.dtype} should be torch.uint8 or floating point; scale other whole "
            "numbers to [0, 1]"
        )
    batch = images if images.dim() == 4 else images[None]
    return _clamp(batch, math.inf) if range == "clamp" and batch.is_floating_point() else batch


def pixels_of(images: object, *, range: Range = "raise") -> Tensor:
    """The images as pixels, with their gradient.

    Half precision is clamped here where its own rounding put a value outside. `checks.inside` clamps float32
    and float64 later, since a traced program cannot look at values here.

    Raises:
        InvalidInputError: as of `batch_of`.
    """
    batch = batch_of(images)
    if batch.dtype == torch.uint8:
        return widened(batch)
    wide = batch if batch.dtype in checks.IMAGE_DTYPES else batch.float()
    if range == "clamp":
        return _clamp(wide, math.inf)
    return wide if wide is batch else _clamp(wide, checks.rounding(batch.dtype))


def restore_dtype_and_shape(pixels: Tensor, images: Tensor) -> Tensor:
    """Pixels as images of the shape and dtype of those that came in; the values of bytes are rounded."""
    narrow = narrowed(pixels, images.dtype)
    return narrow if images.dim() == 4 else narrow[0]


def _clamp(values: Tensor, rounding: float) -> Tensor:
    """Move values at most `rounding` outside of [0, 1] to its ends, with the gradient of the identity."""
    return pass_gradient(values, clamped(values.detach(), rounding))
