"""The gradient that a defense brings itself."""

from dataclasses import dataclass

from torch import Tensor

from vqshield.surrogates.base import ImageSurrogate, Shielding
from vqshield.surrogates.straight_through import StraightThrough


@dataclass(frozen=True)
class OwnGradient(ImageSurrogate):
    """The gradient of `defense.surrogate`: what its author gives, or torch's own where there is one.

    A defense that was made with a surrogate, as SWRD(surrogate="soft"), brings that one. One that brings
    none, as the quantizers do not, is taken for the identity: then this is "ste".

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
            return chosen.attached(
                shielding.images, shielding.quantized, shielding.defense, shielding.streams
            )
        attached = attach_own(shielding)
        return StraightThrough().attach(shielding) if attached is None else attached


def attach_own(shielding: Shielding) -> Tensor | None:
    """The quantized images' values with the gradient that the defense brings; None where it brings none."""
    smooth = shielding.defense.surrogate(shielding.images, streams=shielding.streams)
    return None if smooth is None else shielding.quantized + (smooth - smooth.detach())
