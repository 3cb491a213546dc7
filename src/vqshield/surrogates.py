"""Gradients for a defense that has none.

Quantization is piecewise constant: its true gradient is zero almost everywhere, which stops a naive attack
without making the model any safer. A surrogate says what to use instead in the backward pass; the forward
pass is always the true, quantized image.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from vqshield import checks

Surrogate = Callable[[Tensor, Tensor], Tensor]
"""(images, quantized) → a tensor equal to quantized, with a gradient towards images."""


class _StraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, images: Tensor, quantized: Tensor) -> Tensor:
        return quantized.view_as(quantized)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Any, None]:
        return gradients[0], None


def straight_through(images: Tensor, quantized: Tensor) -> Tensor:
    """The identity's gradient (Bengio et al. 2013; BPDA of Athalye et al. 2018)."""
    result: Tensor = _StraightThrough.apply(images, quantized)  # type: ignore[no-untyped-call]
    return result


_SURROGATES: dict[str, Surrogate] = {"ste": straight_through}


def surrogates() -> list[str]:
    """The names of the registered surrogates."""
    return list(_SURROGATES)


def get(surrogate: str | Surrogate) -> Surrogate:
    """A surrogate by name; a function of your own is passed through."""
    if callable(surrogate):
        return surrogate
    return _SURROGATES[checks.one_of("surrogate", surrogate, _SURROGATES)]
