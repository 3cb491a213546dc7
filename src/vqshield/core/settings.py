"""Spec strings: "swrd:size=3,codes=25,tau=4/255" to a name and a dict of settings, and back.

Values are numbers, fractions and words, read by pattern; nothing is evaluated as code. Registries check
whether a name or a setting exists.
"""

import difflib
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass

from vqshield.core.errors import InvalidInputError

Setting = bool | int | float | str

_FORM = "name or name:key=value,key=value, for example swrd:size=3,tau=4/255"
_TRUTH = {"true": True, "false": False}
_WORD = re.compile(r"[A-Za-z_][\w+-]*", re.ASCII)
_SHARE = re.compile(r"eps/[1-9]\d*", re.ASCII)  # of an attack's budget
_INTEGER = re.compile(r"[+-]?\d{1,30}", re.ASCII)
_DECIMAL = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)


def parse_spec(text: str) -> tuple[str, dict[str, Setting]]:
    """Split "name:key=value,..." into the name and its settings: whole numbers (25), decimals (0.5, 1e-3),
    fractions (4/255), true, false, words (kmeans++), shares of an attack's budget (eps/4).
    """
    name, colon, rest = text.partition(":")
    name = name.strip()
    if not _WORD.fullmatch(name):
        raise InvalidInputError(f"{text!r} does not start with a name; write {_FORM}")
    if colon and not rest.strip():
        raise InvalidInputError(f"{text!r} has no settings after the colon; write {_FORM}")
    settings: dict[str, Setting] = {}
    for pair in rest.split(",") if colon else ():
        key, equals, value = (part.strip() for part in pair.partition("="))
        if not equals or not key.isidentifier():
            raise InvalidInputError(f"{pair.strip()!r} in {text!r} is not key=value; write {_FORM}")
        if key in settings:
            raise InvalidInputError(f"{key!r} is set twice in {text!r}; set it once")
        settings[key] = _parse_value(key, value)
    return name, settings


def parse_number(name: str, text: str) -> float:
    """One number, read as settings are: 0.31 or 8/255."""
    _, settings = parse_spec(f"{name}:{name}={text}")
    value = settings[name]
    if len(settings) > 1 or isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidInputError(f"{name}={text!r} should be one number, as in 0.5 or 8/255")
    return float(value)


def _parse_value(key: str, text: str) -> Setting:
    if _INTEGER.fullmatch(text):
        return int(text)
    if text in _TRUTH:
        return _TRUTH[text]
    if _WORD.fullmatch(text) or _SHARE.fullmatch(text):
        return text
    above, slash, below = (part.strip() for part in text.partition("/"))
    parts = (above, below) if slash else (above,)
    if all(_DECIMAL.fullmatch(part) for part in parts):
        divisor = float(below) if slash else 1.0
        number = float(above) / divisor if divisor else math.nan
        if math.isfinite(number):
            return number
    raise InvalidInputError(
        f"{key}={text!r} is not a value; valid are numbers (25, 0.5), fractions (4/255) and words (clean)"
    )


def refuse_unknown(name: str, settings: Iterable[str], known: Sequence[str]) -> None:
    """Refuse a setting that does not exist; the error lists those that do."""
    for setting in settings:
        if setting not in known:
            raise InvalidInputError(
                f"{name} has no setting {setting!r}; it has {', '.join(known) or 'none at all'}"
                f"{did_you_mean(setting, known)}"
            )


def setting_names(kind: object) -> list[str]:
    """The settings of a dataclass in a registry: its fields."""
    assert is_dataclass(kind), f"{kind} should be a dataclass"
    return [field.name for field in fields(kind)]


def did_you_mean(value: object, known: Iterable[str]) -> str:
    """The end of a message about an unknown name: ". Did you mean 'swrd'?", or nothing if none is near."""
    by_spelling = {each.casefold(): each for each in known}
    near = difflib.get_close_matches(str(value)[:100].casefold(), by_spelling, n=1)
    return f". Did you mean {by_spelling[near[0]]!r}?" if near else ""


def format_settings(settings: Mapping[str, object]) -> str:
    """The settings as parse_spec reads them: size=3, tau=4/255."""
    return ", ".join(f"{key}={format_value(value)}" for key, value in settings.items())


def format_value(value: object) -> str:
    """A value as a person would type it: multiples of 1/255, the unit of noise and budgets, as fractions."""
    if isinstance(value, float):
        bytes_ = value * 255
        if 0 < abs(value) < 1 and math.isclose(bytes_, round(bytes_), rel_tol=1e-9):
            return f"{round(bytes_)}/255"
        return f"{value:g}"
    return str(value).lower() if isinstance(value, bool) else str(value)
