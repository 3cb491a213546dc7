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
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from vqshield.errors import FileFormatError

if TYPE_CHECKING:
    Json = bool | int | float | str | None | Sequence["Json"] | Mapping[str, "Json"]
else:  # a file is not looked into where anything may stand
    Json = object
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
        if shape is object:
            return value
        origin, inner = get_origin(shape), get_args(shape)
        if origin in (Union, types.UnionType):
            return self._union(inner, value, where)
        if origin is Literal:
            if value not in inner:
                raise FileFormatError(
                    f"{where} is {value!r}; it should be one of {', '.join(map(str, inner))}"
                )
            return value
        if origin is tuple:
            return self._tuple(inner, value, where)
        if origin is not None and issubclass(origin, Mapping):
            if not isinstance(value, Mapping):
                raise FileFormatError(f"{where} is {_short(value)}; it should be a table")
            return {str(key): self.read(inner[1], each, f"{where}.{key}") for key, each in value.items()}
        if is_dataclass(shape):
            return self._dataclass(shape, value, where)
        return _scalar(shape, value, where)

    def _union(self, choices: tuple[Any, ...], value: object, where: str) -> Any:
        if value is None and type(None) in choices:
            return None
        known = [each for each in choices if each is not type(None)]
        for each in known[:-1]:
            try:
                return self.read(each, value, where)
            except FileFormatError:
                continue
        return self.read(known[-1], value, where)

    def _tuple(self, inner: tuple[Any, ...], value: object, where: str) -> tuple[Any, ...]:
        if isinstance(value, str) or not isinstance(value, Sequence):
            kinds = {str: "a list of texts", int: "a list of whole numbers", float: "a list of numbers"}
            raise FileFormatError(f"{where} is {_short(value)}; it should be {kinds.get(inner[0], 'a list')}")
        if inner[-1] is Ellipsis:
            return tuple(self.read(inner[0], each, f"{where}[{number}]") for number, each in enumerate(value))
        if len(value) != len(inner):
            raise FileFormatError(f"{where} has {len(value)} entries; there should be {len(inner)}")
        pairs = zip(inner, value, strict=True)
        return tuple(self.read(kind, each, f"{where}[{number}]") for number, (kind, each) in enumerate(pairs))

    def _dataclass(self, shape: Any, value: object, where: str) -> Any:
        if not isinstance(value, Mapping):
            raise FileFormatError(f"{where} is {_short(value)}; it should be a table")
        known = {field.name: field for field in fields(shape) if field.init}
        for key in value if self._strict else ():
            if key not in known:
                raise FileFormatError(f"{where} has the unknown key {key!r}; known are {', '.join(known)}")
        for name, field in known.items():
            if name not in value and _is_required(field):
                raise FileFormatError(f"{where} has no {name!r}, which it needs")
        hints = _hints(shape)
        return shape(
            **{
                name: self.read(hints[name], value[name], f"{where}.{name}")
                for name in known
                if name in value
            }
        )


@cache
def _hints(shape: type) -> dict[str, Any]:
    return get_type_hints(shape)


def _is_required(field: Field[Any]) -> bool:
    return field.default is MISSING and field.default_factory is MISSING


def _scalar(shape: Any, value: object, where: str) -> Any:
    words = {str: "a text", int: "a whole number", float: "a finite number", bool: "true or false"}
    if shape is Path and isinstance(value, str):
        return Path(value)
    if shape is float and isinstance(value, int | float) and not isinstance(value, bool):
        if math.isfinite(value):
            return float(value)
    elif isinstance(value, shape) and (shape is bool or not isinstance(value, bool)):
        return value
    raise FileFormatError(f"{where} is {_short(value)}; it should be {words.get(shape, shape.__name__)}")


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"
