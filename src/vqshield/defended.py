"""A defense in front of a classifier: a model like any other."""

from typing import Any

from torch import Tensor, nn

from vqshield import surrogates
from vqshield.defenses import Defense, create
from vqshield.errors import InvalidInputError
from vqshield.surrogates import Surrogate


class Defended(nn.Module):
    """classifier(defense(images)): images in [0, 1] → logits, differentiable through a surrogate.

    classifier is any module or function from images in [0, 1] to logits; its normalisation belongs inside it.
    surrogate is a name of vqshield.surrogates or a function of your own.
    """

    def __init__(
        self, classifier: nn.Module, defense: Defense, *, surrogate: str | Surrogate = "ste"
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

    def forward(self, images: Tensor, *, streams: Tensor | None = None) -> Tensor:
        """Logits (B, classes) of one draw of the defense, by given streams or fresh ones."""
        quantized = self.defense(images, streams=streams)
        logits: Tensor = self.classifier(self._surrogate(images, quantized))
        return logits


def defend(
    classifier: nn.Module, defense: str = "swrd", *, surrogate: str | Surrogate = "ste", **settings: Any
) -> Defended:
    """Shield a classifier in one line: defend(classifier, "swrd", size=3, codes=25)."""
    return Defended(classifier, create(defense, **settings), surrogate=surrogate)
