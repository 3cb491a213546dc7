"""Bytes and halves as pixels, which are float32 or float64 in [0, 1], and back."""

import math
from typing import Any

import torch
from torch import Tensor

from vqshield.core import checks


class _Replaced(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(images: Tensor, values: Tensor) -> Tensor:
        return values.view_as(values)

    @staticmethod
    def setup_context(ctx: object, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: object, *gradients: Any) -> tuple[Any, None]:
        return gradients[0], None


def pass_gradient(images: Tensor, values: Tensor) -> Tensor:
    """The values in place of the images; their gradient goes to the images unchanged."""
    result: Tensor = _Replaced.apply(images, values)  # type: ignore[no-untyped-call]
    return result


def widened(images: Tensor) -> Tensor:
    """The pixels of bytes and halves, as float32; others are pixels as they are.

    Values of halves that a rounding of their own put outside of [0, 1] are clamped.
    """
    if images.dtype == torch.uint8:
        return images.float() / 255
    if images.dtype in checks.IMAGE_DTYPES:
        return images
    return clamped(images.float(), checks.rounding(images.dtype))


def narrowed(pixels: Tensor, dtype: torch.dtype) -> Tensor:
    """Pixels in the dtype of the images that came in; the values of bytes are rounded."""
    if pixels.dtype == dtype:
        return pixels
    return (pixels.clamp(0, 1).mul(255).round() if dtype == torch.uint8 else pixels).to(dtype)


def clamped(values: Tensor, rounding: float) -> Tensor:
    """Values at most `rounding` outside of [0, 1] moved to its ends."""
    inside = values.clamp(0, 1)
    if math.isinf(rounding):
        return inside
    return torch.where((values - inside).abs() <= rounding, inside, values)  # nan is never <=
