"""What users give a defense (bytes or floats, one image or a batch) to pixels, and the result back again.

Pixels are batches (B, q, h, w), float32 or float64, in [0, 1].
"""

import math
from typing import Literal

import torch
from torch import Tensor

from vqshield.core import checks
from vqshield.core.errors import InvalidInputError
from vqshield.core.gradients import pass_gradient

Range = Literal["raise", "clamp"]


def batch_of(images: object) -> Tensor:
    """The images as a batch of their own dtype, for `operators.shield`.

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
    return images if images.dim() == 4 else images[None]


def widened(images: Tensor, *, range: Range = "raise") -> Tensor:
    """A batch of bytes and halves as float32, with its gradient; float32 and float64 stay as they are.

    Halves that a rounding of their own put outside of [0, 1] are clamped, with range="clamp" all values.
    `checks.inside` clamps float32 and float64 later, since a traced program cannot look at values here.
    """
    if images.dtype == torch.uint8:
        return images.float() / 255
    is_wide = images.dtype in checks.IMAGE_DTYPES
    if is_wide and range == "raise":
        return images
    values = images if is_wide else images.float()
    inside, outside = values.detach().clamp(0, 1), values.detach()
    reach = math.inf if range == "clamp" else checks.rounding(images.dtype)
    return pass_gradient(values, torch.where((outside - inside).abs() <= reach, inside, outside))


def narrowed(pixels: Tensor, dtype: torch.dtype) -> Tensor:
    """Pixels in the dtype of the images that came in; the values of bytes are rounded."""
    if pixels.dtype == dtype:
        return pixels
    return (pixels.clamp(0, 1).mul(255).round() if dtype == torch.uint8 else pixels).to(dtype)


def restore_dtype_and_shape(pixels: Tensor, images: Tensor) -> Tensor:
    """Pixels as images of the shape and dtype of those that came in."""
    narrow = narrowed(pixels, images.dtype)
    return narrow if images.dim() == 4 else narrow[0]
