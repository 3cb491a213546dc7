"""What a surrogate is: a way to a gradient through one draw of a defense that has none of its own."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import final

from torch import Tensor

from vqshield.defenses.base import Defense

Classifier = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Shielding:
    """One draw of a defense: what went in, what came out, and the streams that made it so."""

    images: Tensor  # (B, q, h, w)
    quantized: Tensor
    defense: Defense
    streams: Tensor  # (B,)


class Surrogate(ABC):
    """Changes the backward pass only: the logits are always those of the true, quantized images."""

    @abstractmethod
    def logits(self, classifier: Classifier, shielding: Shielding) -> Tensor:
        """classifier(quantized), with a gradient towards the images."""


class ImageSurrogate(Surrogate):
    """A surrogate of the quantizer itself; the classifier's own gradient is used as it is."""

    @abstractmethod
    def attach(self, shielding: Shielding) -> Tensor:
        """A tensor equal to the quantized images, with a gradient towards the images."""

    @final
    def logits(self, classifier: Classifier, shielding: Shielding) -> Tensor:
        """The classifier's logits of what attach gives."""
        return classifier(self.attach(shielding))
