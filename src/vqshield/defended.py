"""A defense in front of a classifier: a model like any other."""

from typing import Unpack

import torch
from torch import Tensor, nn

from vqshield import surrogates
from vqshield.defenses import (
    Defense,
    DefenseSettings,
    ImageFunction,
    Preprocessor,
    create_any,
    is_preprocessor,
    preprocessor_from,
)
from vqshield.errors import InvalidInputError
from vqshield.models import ask
from vqshield.settings import parse_spec
from vqshield.surrogates import Attach, Shielding, Surrogate


class Defended(nn.Module):
    """classifier(defense(images)): images in [0, 1] → logits, differentiable through a surrogate.

    Args:
        classifier: a module or function from images in [0, 1] to logits; its normalisation belongs inside it.
        defense: a quantizer such as SWRD(), any other Defense, or a preprocessor of your own: any module or
            function from images to images, which becomes a `vqshield.Preprocessor`.
        surrogate: what stands in for the defense's gradient: a name of `vqshield.surrogates`, with settings
            where needed ("soft:temperature=0.1"), a Surrogate, or a function (images, quantized) → a tensor
            equal to quantized, with a gradient to images. Without it, the gradient that the defense brings
            ("own"), or straight through it where it brings none, as the quantizers.

    Raises:
        InvalidInputError: the classifier or the defense cannot be called, or the surrogate is unknown or has
            no gradient for that defense; at a call, images that cannot be taken, or a classifier that
            gives no logits for them.

    Example:
        >>> model = vq.Defended(classifier, vq.SWRD(codes=25, seed=0))
        >>> logits = model(images)
        >>> logits.shape
        torch.Size([8, 10])
        >>> torch.equal(logits, model(images))  # every call draws its own noise
        False
    """

    defense: Defense

    def __init__(
        self,
        classifier: nn.Module,
        defense: Defense | ImageFunction,
        *,
        surrogate: str | Surrogate | Attach = "own",
    ) -> None:
        super().__init__()
        if not callable(classifier):
            raise InvalidInputError(f"classifier should be a module, not {type(classifier).__name__}")
        if not callable(defense):
            raise InvalidInputError(
                f"defense should be a Defense such as SWRD(), or a module or function from images to images, "
                f"not {type(defense).__name__}"
            )
        self.classifier = classifier
        self.defense = defense if isinstance(defense, Defense) else Preprocessor(defense)
        self._surrogate = surrogates.get(surrogate)
        self._surrogate.check(self.defense)
        # The classifier's mode; the modes of its layers are left alone.
        self.training = getattr(classifier, "training", False)

    def forward(self, images: Tensor, *, streams: Tensor | None = None) -> Tensor:
        """Logits (B, classes) of one draw of the defense.

        Args:
            images: (B, q, h, w) in [0, 1].
            streams: stream numbers (B,) that repeat a draw; None takes fresh ones.
        """
        streams = self.defense.streams(images, streams)
        quantized = self.defense(images, streams=streams)
        if images.requires_grad and torch.is_grad_enabled():
            return self._surrogate.logits(self._ask, Shielding(images, quantized, self.defense, streams))
        return self._ask(quantized)

    def _ask(self, images: Tensor) -> Tensor:
        logits = ask(self.classifier, images)
        if logits.dim() < 2 or len(logits) != len(images):
            raise InvalidInputError(
                f"logits of shape {tuple(logits.shape)} should be ({len(images)}, classes): a row per image"
            )
        return logits


def defend(
    classifier: nn.Module,
    defense: str | Defense | ImageFunction = "swrd",
    *,
    surrogate: str | Surrogate | Attach = "own",
    **settings: Unpack[DefenseSettings],
) -> Defended:
    """Shield a classifier in one line.

    Args:
        classifier: as of `Defended`.
        defense: a name of `vqshield.defenses.list_all_defenses()`, settings behind it if you like
            ("swrd:size=3"), a Defense, or any module or function from images to images.
        surrogate: as of `Defended`.
        **settings: those of the named defense, such as size, codes, sigma, tau, seed. The names that editors
            know are those of the quantizers; a control's go into the text ("jpeg:quality=50").

    Returns:
        The classifier behind the defense.

    Raises:
        InvalidInputError: an unknown name or setting, answered with the known ones.

    Example:
        >>> model = vq.defend(classifier, "swrd", size=3, codes=25, seed=0)
        >>> model(images).shape
        torch.Size([8, 10])
    """
    if not isinstance(defense, str):
        if settings:
            given = ", ".join(settings)
            raise InvalidInputError(f"{given} should be set in {type(defense).__name__}(…) itself")
        return Defended(classifier, defense, surrogate=surrogate)
    if is_preprocessor(defense):
        if settings:
            raise InvalidInputError(f"{', '.join(settings)} should be set in {defense} itself")
        return Defended(classifier, preprocessor_from(defense, seed=None), surrogate=surrogate)
    name, in_text = parse_spec(defense)
    twice = [key for key in in_text if key in settings]
    if twice:
        raise InvalidInputError(f"{twice[0]!r} is set twice, in {defense!r} and beside it; set it once")
    return Defended(classifier, create_any(name, **in_text, **settings), surrogate=surrogate)
