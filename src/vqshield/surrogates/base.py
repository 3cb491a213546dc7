"""What a surrogate is, and the simplest ones: the identity's gradient, a user's, the defense's own."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import final

from torch import Tensor

from vqshield.core.errors import InvalidInputError
from vqshield.core.gradients import pass_gradient
from vqshield.defenses import Defense, Quantizer
from vqshield.defenses.base import Shielding

Classifier = Callable[[Tensor], Tensor]
Attach = Callable[[Tensor, Tensor], Tensor]
"""(images, quantized) → a tensor equal to quantized, with a gradient towards images."""


class Surrogate(ABC):
    """Changes the backward pass only: the logits are always those of the true, quantized images.

    A subclass has `logits`; `Defended` takes an instance.

    Example:
        >>> class NoGradient(vq.surrogates.Surrogate):
        ...     def logits(self, classifier, shielding):
        ...         return classifier(shielding.quantized + 0 * shielding.images)
        >>> model = vq.Defended(classifier, vq.PRD(seed=0), surrogate=NoGradient())
        >>> points = images.clone().requires_grad_()
        >>> float(torch.autograd.grad(model(points).sum(), points)[0].abs().max())
        0.0
    """

    @abstractmethod
    def logits(self, classifier: Classifier, shielding: Shielding) -> Tensor:
        """classifier(quantized), with a gradient towards the images."""

    def centres_first(self, defense: Defense) -> bool:
        """Whether it needs the codebook of a draw, which then is found once, for the draw and for it."""
        return False

    def check(self, defense: Defense) -> None:  # noqa: B027 - most surrogates take every defense
        """Raise InvalidInputError where this surrogate has no gradient for such a defense."""


class ImageSurrogate(Surrogate):
    """A surrogate of the defense alone, used with the classifier's own gradient. A subclass has `attach`.

    Example:
        >>> class Half(vq.surrogates.ImageSurrogate):
        ...     def attach(self, shielding):
        ...         images = shielding.images
        ...         return shielding.quantized + (images - images.detach()) / 2
        >>> vq.Defended(classifier, vq.PRD(seed=0), surrogate=Half())(images).shape
        torch.Size([8, 10])
    """

    @abstractmethod
    def attach(self, shielding: Shielding) -> Tensor:
        """A tensor equal to the quantized images, with a gradient towards the images."""

    @final
    def logits(self, classifier: Classifier, shielding: Shielding) -> Tensor:
        return classifier(self.attach(shielding))


def as_quantizer(surrogate: str, defense: Defense) -> Quantizer:
    """The defense, which a surrogate of that name needs to be a quantizer."""
    if not isinstance(defense, Quantizer):
        raise InvalidInputError(
            f"surrogate={surrogate!r} needs a quantizer such as SWRD, not {type(defense).__name__}; "
            "give it surrogate='own' or 'learned'"
        )
    return defense


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
        return attach_own(shielding, otherwise=StraightThrough())


def attach_own(shielding: Shielding, *, otherwise: ImageSurrogate) -> Tensor:
    """The quantized images' values with the gradient that the defense brings, or the other one."""
    smooth = shielding.defense.surrogate(shielding.images, streams=shielding.streams)
    if smooth is None:
        return otherwise.attach(shielding)
    return shielding.quantized + (smooth - smooth.detach())
