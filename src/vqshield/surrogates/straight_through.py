"""The gradient of the identity, and any other that a user writes as a function of both images."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from vqshield.surrogates.base import ImageSurrogate, Shielding

Attach = Callable[[Tensor, Tensor], Tensor]
"""(images, quantized) → a tensor equal to quantized, with a gradient towards images."""


class _Identity(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(images: Tensor, quantized: Tensor) -> Tensor:
        return quantized.view_as(quantized)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Any, None]:
        return gradients[0], None


@dataclass(frozen=True)
class StraightThrough(ImageSurrogate):
    """The defense is taken for the identity (Bengio et al. 2013; BPDA of Athalye et al. 2018).

    Cheap, and often too weak: it sees neither which centre a patch falls to nor that the centres move.

    Example:
        >>> model = vq.Defended(torch.nn.Identity(), vq.PRD(seed=0), surrogate="ste")
        >>> points = images.clone().requires_grad_()
        >>> torch.autograd.grad(model(points).sum(), points)[0].unique()
        tensor([1.])
    """

    def attach(self, shielding: Shielding) -> Tensor:
        """The gradient at the quantized images is handed to the images unchanged."""
        result: Tensor = _Identity.apply(shielding.images, shielding.quantized)  # type: ignore[no-untyped-call]
        return result


@dataclass(frozen=True)
class Given(ImageSurrogate):
    """A user's own function as a surrogate.

    Args:
        function: (images, quantized) → a tensor equal to quantized, with a gradient towards images.

    Example:
        >>> def half(images, quantized):
        ...     return quantized + (images - images.detach()) / 2
        >>> model = vq.Defended(torch.nn.Identity(), vq.PRD(seed=0), surrogate=half)
        >>> points = images.clone().requires_grad_()
        >>> torch.autograd.grad(model(points).sum(), points)[0].unique()
        tensor([0.5000])
    """

    function: Attach

    def attach(self, shielding: Shielding) -> Tensor:
        return self.function(shielding.images, shielding.quantized)
