"""Gradients that need no model of the defense: the identity's, a user's, and the defense's own."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from vqshield.core.gradients import pass_gradient
from vqshield.defenses.base import Shielding
from vqshield.surrogates.base import ImageSurrogate

Attach = Callable[[Tensor, Tensor], Tensor]
"""(images, quantized) → a tensor equal to quantized, with a gradient towards images."""


@dataclass(frozen=True)
class StraightThrough(ImageSurrogate):
    """The gradient of the identity (Bengio et al. 2013; BPDA of Athalye et al. 2018).

    Cheap, and often too weak: it sees neither which centre a patch falls to nor that the centres move.

    Example:
        >>> model = vq.Defended(torch.nn.Identity(), vq.PRD(seed=0), surrogate="ste")
        >>> points = images.clone().requires_grad_()
        >>> torch.autograd.grad(model(points).sum(), points)[0].unique()
        tensor([1.])
    """

    def attach(self, shielding: Shielding) -> Tensor:
        return pass_gradient(shielding.images, shielding.quantized)


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


@dataclass(frozen=True)
class OwnGradient(ImageSurrogate):
    """The gradient of `defense.surrogate`: what its author gives, or torch's own where there is one.

    A defense that was made with a surrogate, as SWRD(surrogate="soft"), brings that one. One that brings
    none, such as a plain quantizer, gets "ste".

    Example:
        >>> def darker(images):
        ...     return images * 0.5
        >>> model = vq.Defended(torch.nn.Identity(), darker)  # "own" is what Defended uses
        >>> points = images.clone().requires_grad_()
        >>> torch.autograd.grad(model(points).sum(), points)[0].unique()
        tensor([0.5000])
    """

    def attach(self, shielding: Shielding) -> Tensor:
        chosen = shielding.defense.gradient
        if chosen is not None and not isinstance(chosen, OwnGradient):
            return chosen.attach(shielding)
        attached = attach_own(shielding)
        return StraightThrough().attach(shielding) if attached is None else attached


def attach_own(shielding: Shielding) -> Tensor | None:
    """The quantized images' values with the gradient that the defense brings, if it brings one."""
    smooth = shielding.defense.surrogate(shielding.images, streams=shielding.streams)
    return None if smooth is None else shielding.quantized + (smooth - smooth.detach())
