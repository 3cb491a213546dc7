"""Dataclasses to plain values (what JSON and TOML hold) and back, checked on the way in.

Inside the program results are dataclasses; a dict exists only between here and a file. The shape of a file is
the dataclass itself, so there is no second list of its keys to keep true.
"""

import math
import types
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from vqshield.core.errors import FileFormatError, InvalidInputError
from vqshield.core.settings import did_you_mean

Json = bool | int | float | str | None | Sequence["Json"] | Mapping[str, "Json"]
"""Whatever a file may hold, where nothing here needs to look inside."""

Shape = TypeVar("Shape")


def to_plain(value: object) -> Any:
    """A dataclass, and all that it holds, as JSON can write it; fields in their order.

    A field whose metadata says {"omit": True} is left out where it is None.
    """
    if is_dataclass(value) and not isinstance(value, type):
        return {
            field.name: to_plain(held)
            for field in fields(value)
            if (held := getattr(value, field.name)) is not None or not field.metadata.get("omit")
        }
    if isinstance(value, Mapping):
        return {str(key): to_plain(each) for key, each in value.items()}
    if isinstance(value, str | Path):
        return str(value)
    if isinstance(value, Sequence):
        return [to_plain(each) for each in value]
    return value


def from_plain(shape: type[Shape], value: object, where: str, *, strict: bool = True) -> Shape:
    """The value of that type that a file's plain value stands for.

    Args:
        shape: a dataclass; its fields may be dataclasses, tuples, mappings, literals, unions and numbers.
        value: what the file holds.
        where: the file's name, for the message of an error.
        strict: whether a key that the dataclass does not know is an error, or is passed over.

    Raises:
        FileFormatError: naming the place in the file, what stands there, and what would be valid.
    """
    return _Reader(strict).read(shape, value, where)  # type: ignore[no-any-return]


class _Reader:
    def __init__(self, strict: bool) -> None:
        self._strict = strict

    def read(self, shape: Any, value: object, where: str) -> Any:
        origin, inner = get_origin(shape), get_args(shape)
        if shape is Any or _is_json(inner):
            return value
        if origin in (Union, types.UnionType):
            return self._union(shape, value, where)
        if origin is Literal:
            if not any(type(value) is type(each) and value == each for each in inner):
                raise _wrong(where, value, shape)
            return value
        if origin is tuple:
            return self._tuple(shape, value, where)
        if origin is not None and issubclass(origin, Mapping):
            if not isinstance(value, Mapping):
                raise _wrong(where, value, shape)
            return {str(key): self.read(inner[1], each, f"{where}.{key}") for key, each in value.items()}
        if is_dataclass(shape):
            return self._dataclass(shape, value, where)
        return _scalar(shape, value, where)

    def _union(self, shape: Any, value: object, where: str) -> Any:
        choices = get_args(shape)
        if value is None and type(None) in choices:
            return None
        refusals = []
        # A number that is whole stays so where both kinds are allowed, whichever stands first.
        for each in sorted(
            (each for each in choices if each is not type(None)), key=lambda each: each is float
        ):
            try:
                return self.read(each, value, where)
            except FileFormatError as error:
                refusals.append((each, error))
        deeper = [error for each, error in refusals if _is_of_the_form(each, value)]
        if len(deeper) == 1:  # the right form with something wrong inside: say what
            raise deeper[0]
        raise _wrong(where, value, shape)

    def _tuple(self, shape: Any, value: object, where: str) -> tuple[Any, ...]:
        inner = get_args(shape)
        if isinstance(value, str) or not isinstance(value, Sequence):
            raise _wrong(where, value, shape)
        if inner[-1] is Ellipsis:
            return tuple(self.read(inner[0], each, f"{where}[{number}]") for number, each in enumerate(value))
        if len(value) != len(inner):
            raise FileFormatError(f"{where} has {len(value)} entries; there should be {len(inner)}")
        pairs = zip(inner, value, strict=True)
        return tuple(self.read(kind, each, f"{where}[{number}]") for number, (kind, each) in enumerate(pairs))

    def _dataclass(self, shape: Any, value: object, where: str) -> Any:
        if not isinstance(value, Mapping):
            raise _wrong(where, value, shape)
        known = {field.name: field for field in fields(shape) if field.init}
        for key in value if self._strict else ():
            if key not in known:
                raise FileFormatError(
                    f"{where} has the unknown key {_short(key)}; known are {', '.join(known)}"
                    f"{did_you_mean(key, known)}"
                )
        for name, field in known.items():
            if name not in value and _is_required(field):
                raise FileFormatError(f"{where} has no {name!r}, which it needs")
        hints = _hints(shape)
        held = {
            name: self.read(hints[name], value[name], f"{where}.{name}") for name in known if name in value
        }
        try:
            return shape(**held)
        except InvalidInputError as error:  # the dataclass's own checks
            raise FileFormatError(f"{where}: {error}") from error


@cache
def _hints(shape: type) -> dict[str, Any]:
    return get_type_hints(shape, localns={"Json": Json})


def _is_json(choices: tuple[Any, ...]) -> bool:
    """Whether these are the members of Json, which resolving its inner references makes another object."""
    return {get_origin(each) or each for each in choices} >= {
        get_origin(each) or each for each in get_args(Json)
    }


def _is_required(field: Field[Any]) -> bool:
    return field.default is MISSING and field.default_factory is MISSING


def _scalar(shape: Any, value: object, where: str) -> Any:
    if shape is Path and isinstance(value, str):
        return Path(value)
    if shape is float and isinstance(value, int | float) and not isinstance(value, bool):
        try:
            number = float(value)
        except OverflowError:  # a whole number beyond every float
            number = math.inf
        if math.isfinite(number):
            return number
    elif isinstance(value, shape) and (shape is bool or not isinstance(value, bool)):
        return value
    raise _wrong(where, value, shape)


def _wrong(where: str, value: object, shape: Any) -> FileFormatError:
    return FileFormatError(f"{where} is {_short(value)}; it should be {_expected(shape)}")


_WORDS = {
    str: "a text",
    Path: "a text, the path of a file",
    int: "a whole number",
    float: "a finite number",
    bool: "true or false",
    type(None): "null",
}
_LISTS = {str: "a list of texts", int: "a list of whole numbers", float: "a list of numbers"}


def _expected(shape: Any) -> str:
    """What a file should hold there, in words."""
    origin, inner = get_origin(shape), get_args(shape)
    if origin in (Union, types.UnionType):
        words = [_expected(each) for each in inner if each is not type(None)]
        return " or ".join(dict.fromkeys([*words, "absent"] if type(None) in inner else words))
    if origin is Literal:
        return f"one of {', '.join(map(str, inner))}"
    if origin is tuple:
        return _LISTS.get(inner[0], "a list") + ("" if inner[-1] is Ellipsis else f" of {len(inner)} entries")
    if is_dataclass(shape) or (origin is not None and issubclass(origin, Mapping)):
        return "a table"
    return _WORDS.get(shape, getattr(shape, "__name__", str(shape)))


def _is_of_the_form(shape: Any, value: object) -> bool:
    origin = get_origin(shape)
    if origin is tuple:
        return isinstance(value, Sequence) and not isinstance(value, str)
    if is_dataclass(shape) or (isinstance(origin, type) and issubclass(origin, Mapping)):
        return isinstance(value, Mapping)
    return False


def _short(value: object) -> str:
    try:
        text = repr(value)
    except ValueError:  # a whole number of more digits than Python prints
        return "a number of thousands of digits"
    return text if len(text) <= 60 else f"{text[:57]}…"
