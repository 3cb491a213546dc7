"""A defense in front of a classifier: a model like any other."""

from typing import Any

import torch
from torch import Tensor, nn

from vqshield import surrogates
from vqshield.defenses import Defense, create
from vqshield.errors import InvalidInputError
from vqshield.surrogates import Attach, Shielding, Surrogate


class Defended(nn.Module):
    """classifier(defense(images)): images in [0, 1] → logits, differentiable through a surrogate.

    classifier is any module or function from images in [0, 1] to logits; its normalisation belongs inside it.
    surrogate is a name of vqshield.surrogates, with settings if you like ("soft:temperature=0.1"), a
    Surrogate, or a function (images, quantized) → a tensor equal to quantized, with a gradient to images.
    """

    def __init__(
        self, classifier: nn.Module, defense: Defense, *, surrogate: str | Surrogate | Attach = "ste"
    ) -> None:
        super().__init__()
        if not callable(classifier):
            raise InvalidInputError(f"classifier should be a module, not {type(classifier).__name__}")
        if not isinstance(defense, Defense):
            raise InvalidInputError(
                f"defense should be a Defense such as SWRD(), not {type(defense).__name__}"
            )
        self.classifier = classifier
        self.defense = defense
        self._surrogate = surrogates.get(surrogate)
        self.training = getattr(
            classifier, "training", False
        )  # its mode; the modes of its layers are its own

    def forward(self, images: Tensor, *, streams: Tensor | None = None) -> Tensor:
        """Logits (B, classes) of one draw of the defense, by given streams or fresh ones."""
        streams = self.defense.streams(images, streams)
        quantized = self.defense(images, streams=streams)
        if images.requires_grad and torch.is_grad_enabled():
            return self._surrogate.logits(
                self.classifier, Shielding(images, quantized, self.defense, streams)
            )
        logits: Tensor = self.classifier(quantized)
        return logits


def defend(
    classifier: nn.Module,
    defense: str = "swrd",
    *,
    surrogate: str | Surrogate | Attach = "ste",
    **settings: Any,
) -> Defended:
    """Shield a classifier in one line: defend(classifier, "swrd", size=3, codes=25)."""
    return Defended(classifier, create(defense, **settings), surrogate=surrogate)
