"""What goes into a defense, and what comes out: images of the kinds that people have.

Everything between works on pixels: batches (B, q, h, w), float32 or float64, in [0, 1].
"""

import math
from typing import Any

import torch
from torch import Tensor

from vqshield import checks
from vqshield.errors import InvalidInputError

RANGES = ("raise", "clamp")


class _Clamped(torch.autograd.Function):
    """Values at most `rounding` outside of [0, 1] moved to its ends, with the gradient of the identity."""

    generate_vmap_rule = True

    @staticmethod
    def forward(values: Tensor, rounding: float) -> Tensor:
        inside = values.clamp(0, 1)
        return torch.where((values - inside).abs() <= rounding, inside, values)  # nan is never <=

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, float], output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Any, None]:
        return gradients[0], None


def pixels_of(images: object, *, range: str = "raise") -> Tensor:
    """The images as pixels, with their gradient.

    Half precision is clamped here where a rounding of its own put it outside; float32 and float64 are clamped
    by whoever looks at values (`checks.inside`), which a traced program cannot do here. What is further
    outside is left to be refused there, unless range="clamp".

    Raises:
        InvalidInputError: no tensor, or of a shape or dtype that images do not have.
    """
    if not isinstance(images, Tensor):
        raise InvalidInputError(f"images should be a torch tensor, not {type(images).__name__}")
    if images.dim() not in (3, 4):
        raise InvalidInputError(
            f"images of shape {tuple(images.shape)} should have 4 dimensions, (B, q, h, w), or 3, (q, h, w)"
        )
    batch = images if images.dim() == 4 else images[None]
    if images.dtype == torch.uint8:
        return batch.float() / 255
    if not images.is_floating_point():
        raise InvalidInputError(
            f"images of dtype {images.dtype} should be torch.uint8 or floating point; scale other whole "
            "numbers to [0, 1]"
        )
    wide = batch if images.dtype in checks.IMAGE_DTYPES else batch.float()
    if range == "clamp":
        return _clamped(wide, math.inf)
    return wide if wide is batch else _clamped(wide, checks.rounding(images.dtype))


def as_they_came(found: Tensor, images: Tensor) -> Tensor:
    """Pixels as images of the shape and dtype of those that came in; the values of bytes are rounded."""
    if images.dtype == torch.uint8:
        found = found.clamp(0, 1).mul(255).round()
    if found.dtype != images.dtype:
        found = found.to(images.dtype)
    return found if images.dim() == 4 else found[0]


def _clamped(values: Tensor, rounding: float) -> Tensor:
    result: Tensor = _Clamped.apply(values, rounding)  # type: ignore[no-untyped-call]
    return result
