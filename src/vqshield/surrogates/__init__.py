"""Gradients for a defense that has none.

Quantization is piecewise constant: its true gradient is zero almost everywhere, which stops a naive attack
without making the model any safer. A surrogate says what to use instead in the backward pass; the forward
pass is always the true, quantized image. A new one is a new file with a Surrogate and a line in _SURROGATES.
"""

from collections.abc import Callable
from dataclasses import fields

from vqshield import checks
from vqshield.errors import InvalidInputError
from vqshield.settings import parse_spec, refuse_unknown
from vqshield.surrogates.base import ImageSurrogate, Shielding, Surrogate
from vqshield.surrogates.score import Score
from vqshield.surrogates.soft import Soft
from vqshield.surrogates.straight_through import Attach, Own, StraightThrough

_SURROGATES: dict[str, Callable[..., Surrogate]] = {"ste": StraightThrough, "soft": Soft, "score": Score}


def list_surrogates() -> list[str]:
    """The names of the registered surrogates."""
    return list(_SURROGATES)


def get(surrogate: str | Surrogate | Attach) -> Surrogate:
    """A surrogate by name ("soft", "soft:temperature=0.1,centres=constant"), an object, or a function."""
    if isinstance(surrogate, Surrogate):
        return surrogate
    if callable(surrogate):
        return Own(surrogate)
    if not isinstance(surrogate, str):
        raise InvalidInputError(f"surrogate should be a name, not {type(surrogate).__name__}")
    name, settings = parse_spec(surrogate)
    chosen = _SURROGATES[checks.one_of("surrogate", name, _SURROGATES)]
    refuse_unknown(name, settings, known_settings(name))
    return chosen(**settings)


def known_settings(name: str) -> list[str]:
    """The settings that a surrogate takes."""
    chosen = _SURROGATES[checks.one_of("surrogate", name, _SURROGATES)]
    return [field.name for field in fields(chosen)]  # type: ignore[arg-type]


__all__ = [
    "Attach", "ImageSurrogate", "Own", "Score", "Shielding", "Soft", "StraightThrough", "Surrogate",
    "get", "known_settings", "list_surrogates",
]  # fmt: skip
