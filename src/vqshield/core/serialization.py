"""Dataclasses to plain values (what JSON and TOML hold) and back, checked on the way in.

Inside the program results are dataclasses; a dict exists only between here and a file. The dataclass itself
is the schema of its file.
"""

import math
import types
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
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
    """A file's plain value as a value of that type: a dataclass of dataclasses, tuples, mappings and others.

    Args:
        where: the file's name, for the message of an error.
        strict: whether an unknown key is an error, or is ignored.

    Raises:
        FileFormatError: naming the place in the file, its value, and what would be valid.
    """
    return _read(shape, value, where, strict)  # type: ignore[no-any-return]


def _read(shape: object, value: object, where: str, strict: bool) -> Any:
    origin, inner = get_origin(shape), get_args(shape)
    if shape is Any or _forms(inner) >= _JSON_FORMS:
        return value
    if origin in (Union, types.UnionType):
        return _read_union(shape, value, where, strict)
    if origin is Literal:
        if not any(type(value) is type(each) and value == each for each in inner):
            raise _wrong(where, value, shape)
        return value
    if origin is tuple:
        return _read_tuple(shape, value, where, strict)
    if _is_mapping(shape):
        if not isinstance(value, Mapping):
            raise _wrong(where, value, shape)
        return {str(key): _read(inner[1], each, f"{where}.{key}", strict) for key, each in value.items()}
    if is_dataclass(shape):
        return _read_dataclass(shape, value, where, strict)
    return _read_scalar(shape, value, where)


def _read_union(shape: object, value: object, where: str, strict: bool) -> object:
    choices = get_args(shape)
    if value is None and type(None) in choices:
        return None
    refusals = []
    kinds = [choice for choice in choices if choice is not type(None)]
    for choice in sorted(kinds, key=lambda kind: kind is float):  # int before float: whole numbers stay whole
        try:
            return _read(choice, value, where, strict)
        except FileFormatError as error:
            refusals.append((choice, error))
    deeper = [error for choice, error in refusals if _has_form(choice, value)]
    if len(deeper) == 1:  # the right form with something wrong inside: say what
        raise deeper[0]
    raise _wrong(where, value, shape)


def _read_tuple(shape: object, value: object, where: str, strict: bool) -> tuple[object, ...]:
    inner = get_args(shape)
    if not _has_form(shape, value):
        raise _wrong(where, value, shape)
    assert isinstance(value, Sequence)
    kinds = [inner[0]] * len(value) if inner[-1] is Ellipsis else inner
    if len(value) != len(kinds):
        raise FileFormatError(f"{where} has {len(value)} entries; there should be {len(kinds)}")
    pairs = enumerate(zip(kinds, value, strict=True))
    return tuple(_read(kind, each, f"{where}[{number}]", strict) for number, (kind, each) in pairs)


def _read_dataclass(shape: Any, value: object, where: str, strict: bool) -> object:
    if not isinstance(value, Mapping):
        raise _wrong(where, value, shape)
    known = {field.name: field for field in fields(shape) if field.init}
    for key in value if strict else ():
        if key not in known:
            raise FileFormatError(
                f"{where} has the unknown key {_short(key)}; known are {', '.join(known)}"
                f"{did_you_mean(key, known)}"
            )
    for name, field in known.items():
        if name not in value and field.default is field.default_factory is MISSING:
            raise FileFormatError(f"{where} has no {name!r}, which it needs")
    hints = _hints(shape)
    given = [name for name in known if name in value]
    held = {name: _read(hints[name], value[name], f"{where}.{name}", strict) for name in given}
    try:
        return shape(**held)
    except InvalidInputError as error:  # the dataclass's own checks
        raise FileFormatError(f"{where}: {error}") from error


def _read_scalar(shape: Any, value: object, where: str) -> object:
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


@cache
def _hints(shape: type) -> dict[str, object]:
    return get_type_hints(shape, localns={"Json": Json})


def _forms(choices: tuple[object, ...]) -> set[object]:
    return {get_origin(each) or each for each in choices}


_JSON_FORMS = _forms(get_args(Json))  # resolving the references inside of Json makes another object of it


def _is_mapping(shape: object) -> bool:
    origin = get_origin(shape)
    return isinstance(origin, type) and issubclass(origin, Mapping)


def _has_form(shape: object, value: object) -> bool:
    """Whether a value is a list or a table, as a shape is."""
    if get_origin(shape) is tuple:
        return isinstance(value, Sequence) and not isinstance(value, str)
    return (is_dataclass(shape) or _is_mapping(shape)) and isinstance(value, Mapping)


def _wrong(where: str, value: object, shape: object) -> FileFormatError:
    return FileFormatError(f"{where} is {_short(value)}; it should be {_expected(shape)}")


_WORDS: Mapping[object, str] = {
    str: "a text",
    Path: "a text, the path of a file",
    int: "a whole number",
    float: "a finite number",
    bool: "true or false",
    type(None): "null",
}
_LISTS = {str: "a list of texts", int: "a list of whole numbers", float: "a list of numbers"}


def _expected(shape: object) -> str:
    """What a file should hold there, for people."""
    origin, inner = get_origin(shape), get_args(shape)
    if origin in (Union, types.UnionType):
        words = [_expected(each) for each in inner if each is not type(None)]
        return " or ".join(dict.fromkeys([*words, "absent"] if type(None) in inner else words))
    if origin is Literal:
        return f"one of {', '.join(map(str, inner))}"
    if origin is tuple:
        return _LISTS.get(inner[0], "a list") + ("" if inner[-1] is Ellipsis else f" of {len(inner)} entries")
    if is_dataclass(shape) or _is_mapping(shape):
        return "a table"
    return _WORDS.get(shape, getattr(shape, "__name__", str(shape)))


def _short(value: object) -> str:
    try:
        text = repr(value)
    except ValueError:  # a whole number of more digits than Python prints
        return "a number of thousands of digits"
    return text if len(text) <= 60 else f"{text[:57]}…"
