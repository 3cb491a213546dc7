"""The interface of a surrogate: a gradient through one draw of a defense that has none of its own."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import final

from torch import Tensor

from vqshield.core.errors import InvalidInputError
from vqshield.defenses import Defense, Quantizer
from vqshield.defenses.base import Shielding

Classifier = Callable[[Tensor], Tensor]


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
