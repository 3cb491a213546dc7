"""Gradients for a defense that has none.

Quantization is piecewise constant: its true gradient is zero almost everywhere, which stops a naive attack
without making the model any safer. A surrogate replaces it in the backward pass; the forward pass is always
the true, quantized image. A new one is a new file with a Surrogate and a line in _SURROGATES.

"own" is the gradient that a defense brings, "ste" takes any for the identity, "learned" fits a network to it.
"soft" and "score" use how quantizers work; "soft" serves every other defense as well, as "own" or "learned".
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from vqshield.core import checks
from vqshield.core.errors import InvalidInputError
from vqshield.core.settings import parse_spec, refuse_unknown, setting_names
from vqshield.defenses.base import Shielding
from vqshield.surrogates.base import Attach, Given, ImageSurrogate, OwnGradient, StraightThrough, Surrogate

if TYPE_CHECKING:
    from vqshield.surrogates.learned import Learned as Learned
    from vqshield.surrogates.score import Score as Score
    from vqshield.surrogates.soft import Soft as Soft

_SURROGATES = {
    "ste": "base.StraightThrough", "soft": "soft.Soft", "score": "score.Score",
    "own": "base.OwnGradient", "learned": "learned.Learned",
}  # fmt: skip
"""The module and class behind each name."""
_HOMES = {"Learned": "learned", "Score": "score", "Soft": "soft"}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def list_surrogates() -> list[str]:
    """The names of the registered surrogates.

    Example:
        >>> vq.surrogates.list_surrogates()
        ['ste', 'soft', 'score', 'own', 'learned']
    """
    return list(_SURROGATES)


def get(surrogate: str | Surrogate | Attach) -> Surrogate:
    """A surrogate from its spec string.

    Args:
        surrogate: a name, with settings where needed ("soft:temperature=0.1,centres=constant"); a Surrogate,
            which is returned; or a function (images, quantized) → a tensor equal to quantized.

    Raises:
        InvalidInputError: an unknown name or setting, answered with the known ones.

    Example:
        >>> vq.surrogates.get("soft:temperature=0.1")
        Soft(temperature=0.1, centres='means', rounds=3, noise='none')
    """
    if isinstance(surrogate, Surrogate):
        return surrogate
    if callable(surrogate):
        return Given(surrogate)
    if not isinstance(surrogate, str):
        raise InvalidInputError(f"surrogate should be a name, not {type(surrogate).__name__}")
    name, settings = parse_spec(surrogate)
    refuse_unknown(name, settings, known_settings(name))
    made: Surrogate = _surrogate_class(name)(**settings)
    return made


def of_images(surrogate: str | Surrogate | Attach) -> ImageSurrogate:
    """A surrogate of the defense alone, which needs no classifier behind it.

    Args:
        surrogate: as of `get`.

    Raises:
        InvalidInputError: an unknown surrogate, or one that needs the classifier.

    Example:
        >>> vq.surrogates.of_images("ste")
        StraightThrough()
    """
    made = get(surrogate)
    if not isinstance(made, ImageSurrogate):
        raise InvalidInputError(
            f"surrogate={surrogate!r} needs the classifier behind the defense; use vqshield.defend, or "
            "another surrogate, such as ste or soft"
        )
    return made


def known_settings(name: str) -> list[str]:
    """The settings that a surrogate takes.

    Raises:
        InvalidInputError: an unknown name.

    Example:
        >>> vq.surrogates.known_settings("soft")
        ['temperature', 'centres', 'rounds', 'noise']
    """
    return setting_names(_surrogate_class(name))


def _surrogate_class(name: str) -> Any:
    module, _, kind = _SURROGATES[checks.one_of("surrogate", name, _SURROGATES)].partition(".")
    return getattr(import_module(f"{__name__}.{module}"), kind)


__all__ = [
    "Attach", "Given", "ImageSurrogate", "OwnGradient", "Shielding", "StraightThrough", "Surrogate", "get",
    "known_settings", "list_surrogates", "of_images", *_HOMES,
]  # fmt: skip
