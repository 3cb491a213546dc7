"""A defense in front of a classifier: a model like any other."""

import warnings
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Unpack

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from vqshield import surrogates
from vqshield.core.errors import InvalidInputError
from vqshield.core.settings import parse_spec
from vqshield.defenses import (
    Defense,
    DefenseLike,
    DefenseSettings,
    Quantizer,
    as_defense,
    create_any,
    is_preprocessor,
)
from vqshield.models.calling import Normalising, ask, asked_part, own_dtype
from vqshield.surrogates import Attach, Shielding, Surrogate

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


class Defended(nn.Module):
    """classifier(defense(images)): images in [0, 1] → logits, differentiable through a surrogate.

    It takes the images that a `Defense` takes; the classifier gets them in the dtype of its parameters.

    Args:
        classifier: a module or function from images in [0, 1] to logits, or to something that has them as
            `.logits`. Its normalisation belongs inside it: `defend` puts it there.
        defense: a Defense such as SWRD(), its spec string ("swrd:size=3"), or a preprocessor of your own: any
            module or function from images to images, which becomes a `vqshield.Preprocessor`.
        surrogate: the gradient used for the defense: a name of `vqshield.surrogates`, with settings where
            needed ("soft:temperature=0.1"), a Surrogate, or a function (images, quantized) → a tensor equal
            to quantized, with a gradient to images. Default: the gradient that the defense has ("own");
            quantizers have none and use the straight-through estimator.

    Raises:
        InvalidInputError: the classifier or the defense cannot be called, or the surrogate is unknown or has
            no gradient for that defense; at a call, invalid images, or a classifier without logits.

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
        self, classifier: nn.Module, defense: DefenseLike, *, surrogate: str | Surrogate | Attach = "own"
    ) -> None:
        super().__init__()
        if not callable(classifier):
            raise InvalidInputError(f"classifier should be a module, not {type(classifier).__name__}")
        self.classifier = classifier
        self.defense = as_defense(defense)
        self._surrogate = surrogates.get(surrogate)
        self._surrogate.check(self.defense)
        self.training = getattr(classifier, "training", False)

    def forward(self, images: Tensor, *, streams: Tensor | None = None) -> Tensor:
        """Logits (B, classes) of one draw of the defense; (classes,) of a single image.

        Args:
            images: (B, q, h, w), or (q, h, w): bytes, or floating point in [0, 1].
            streams: stream numbers (B,) that repeat a draw; None draws fresh ones.
        """
        pixels = self.defense.pixels(images)
        streams = self._streams(pixels) if streams is None else self.defense.streams(pixels, streams)
        if pixels.requires_grad and torch.is_grad_enabled():
            logits = self._surrogate.logits(self._ask, self._shielding(pixels, streams))
        else:
            logits = self._ask(self.defense(pixels.detach(), streams=streams))
        return logits if images.dim() == 4 else logits[0]

    def _streams(self, pixels: Tensor) -> Tensor:
        """Fresh stream numbers; for a part of a batch those that it has in the whole batch."""
        part = None if torch.compiler.is_compiling() else asked_part()
        if part is None or self.defense._streams_from == "content" or len(pixels) % len(part.places):
            return self.defense.streams(pixels)
        draws = len(pixels) // len(part.places)
        numbers = self.defense.streams(pixels[:1].expand(draws * part.whole, -1, -1, -1))
        return numbers.view(draws, part.whole)[:, part.places].flatten()

    def _shielding(self, pixels: Tensor, streams: Tensor) -> Shielding:
        """One draw, detached: the gradient is the surrogate's alone."""
        defense, images = self.defense, pixels.detach()
        if not (
            isinstance(defense, Quantizer) and defense._is_plain() and self._surrogate.centres_first(defense)
        ):
            return Shielding(pixels, defense(images, streams=streams), defense, streams)
        centres = defense.codebook(images, streams=streams)
        quantized = defense.quantize(images, centres, streams=streams)
        return Shielding(pixels, quantized, defense, streams, centres)

    def _ask(self, images: Tensor) -> Tensor:
        logits = ask(self.classifier, images.to(own_dtype(self.classifier, images.dtype)))
        count = images.shape[0]  # len() would fix the number of images in an exported program
        if logits.dim() < 2 or logits.shape[0] != count:
            raise InvalidInputError(
                f"logits of shape {tuple(logits.shape)} should be ({count}, classes): a row per image"
            )
        return logits


def has_hooks(module: nn.Module) -> bool:
    """Whether hooks of this module itself may change its output or its gradient."""
    return any(getattr(module, hooks) for hooks in _HOOKS)


def alteration_of(model: Defended) -> str | None:
    """Why classifier and defense do not fully describe a model; None where they do."""
    mro = type(model).__mro__
    for kind in mro[: mro.index(Defended)]:
        for name in vars(kind).keys() - {"__init__"}:
            if callable(getattr(Defended, name, None)):
                return f"{kind.__name__} has a {name} of its own"
    if model.defense._streams_from != "fresh":
        return f"streams={model.defense._streams_from!r} gives an image the same noise every time"
    for module in (model, model.defense):
        if has_hooks(module):
            return f"{type(module).__name__} has hooks"
        for name in vars(module):
            if callable(getattr(type(module), name, None)):
                return f"{name} of {type(module).__name__} was replaced"
    return None


def defend(
    classifier: nn.Module,
    defense: DefenseLike = "swrd",
    *,
    surrogate: str | Surrogate | Attach = "own",
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    calibrate: Tensor | str | Path | None = None,
    **settings: Unpack[DefenseSettings],
) -> Defended:
    """Put a defense in front of a classifier in one line.

    Args:
        classifier: as of `Defended`.
        defense: as of `Defended`; names are those of `vqshield.defenses.list_all_defenses()`.
        surrogate: as of `Defended`.
        mean, std: of each channel, in units of [0, 1], for a classifier that expects images normalised by
            them; the defended model normalises after the defense. None: the classifier takes [0, 1].
        calibrate: unlabelled images to fit the classifier's batch-norm statistics to, as of `vq.calibrate`;
            None: no calibration.
        **settings: those of the named defense, such as size, codes, sigma, tau, seed. Editors complete those
            of the quantizers; settings of other defenses go into the spec string ("jpeg:quality=50").

    Returns:
        The classifier behind the defense.

    Raises:
        InvalidInputError: an unknown name or setting, with the known ones; mean without std.

    Warns:
        UserWarning: the classifier declares that it expects normalised images (timm's do) without mean and
            std here, or it already normalises and both are set. Or it is in training mode and has batch
            norms: its outputs depend on the batch, and every call changes its statistics. Call
            ``classifier.eval()`` first. `Defended` does not warn: training behind a defense uses it.

    Example:
        >>> model = vq.defend(classifier, "swrd", size=3, codes=25, seed=0)
        >>> model(images).shape
        torch.Size([8, 10])
        >>> network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3072, 10))
        >>> model = vq.defend(network, "prd", mean=[0.5, 0.5, 0.5], std=[0.25, 0.25, 0.25])
        >>> model(images[0]).shape  # a single image
        torch.Size([10])
    """
    if calibrate is not None:
        model = defend(classifier, defense, surrogate=surrogate, mean=mean, std=std, **settings)
        # By name: calibration needs training, which is built on this module.
        calibrated: Defended = import_module("vqshield.training.calibration").calibrate(model, calibrate)
        return calibrated
    modules = classifier.modules() if isinstance(classifier, nn.Module) else ()
    if any(isinstance(each, _NormBase) and each.training and each.track_running_stats for each in modules):
        warnings.warn(
            f"{type(classifier).__name__} is in training mode: its batch norms use the statistics of each "
            "batch, and change their own at every call; call eval() on it before you use the defended model",
            stacklevel=2,
        )
    classifier = _normalising(classifier, mean, std)
    if not isinstance(defense, str) or is_preprocessor(defense):
        if settings:
            owner = defense if isinstance(defense, str) else f"{type(defense).__name__}(…)"
            raise InvalidInputError(f"{', '.join(settings)} should be set in {owner} itself")
        return Defended(classifier, defense, surrogate=surrogate)
    name, in_text = parse_spec(defense)
    twice = [key for key in in_text if key in settings]
    if twice:
        raise InvalidInputError(f"{twice[0]!r} is set twice, in {defense!r} and next to it; set it once")
    return Defended(classifier, create_any(name, **in_text, **settings), surrogate=surrogate)


def _normalising(
    classifier: nn.Module, mean: Sequence[float] | None, std: Sequence[float] | None
) -> nn.Module:
    if (mean is None) != (std is None):
        given, missing = ("mean", "std") if std is None else ("std", "mean")
        raise InvalidInputError(f"{given} is given, and {missing} is not; give both or neither")
    if mean is None or std is None:
        declared = getattr(classifier, "pretrained_cfg", None)  # of timm's networks
        if isinstance(declared, dict) and {"mean", "std"} <= set(declared):
            expected = [[float(value) for value in declared[name]] for name in ("mean", "std")]
            if set(expected[0]) != {0.0} or set(expected[1]) != {1.0}:
                warnings.warn(
                    f"{type(classifier).__name__} says that it was trained on images normalised by mean="
                    f"{expected[0]}, std={expected[1]}, and gets images in [0, 1]; give defend mean and std",
                    stacklevel=3,
                )
        return classifier
    if isinstance(classifier, Normalising):
        warnings.warn(
            f"{type(classifier).__name__} normalises already; mean={list(mean)} and std={list(std)} come on "
            "top of that: leave them out",
            stacklevel=3,
        )
    return Normalising(classifier, mean=mean, std=std)
