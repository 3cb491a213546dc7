"""Experiment files: TOML to experiments. Unknown keys are errors, and so are settings that cannot work.

id = "T2"; title; shows = "table" | "curves" | "gallery" | "example"
[[parts]] name, title, data, kind = "accuracy" | "certified" | "divergence" | "gallery" | "example" with the
    keys of its class; or kind = "gap" | "tradeoff", of = another experiment's id, whose parts it shows anew
"""

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from importlib import resources
from pathlib import Path
from typing import Any, get_args, get_origin

from vqshield import checks
from vqshield.errors import FileFormatError, InvalidInputError
from vqshield.files import parse_toml, read_text
from vqshield.reproduction import published
from vqshield.reproduction.accuracy import AccuracyPart
from vqshield.reproduction.certified import CertifiedPart
from vqshield.reproduction.derived import DerivedPart, GapPart, TradeoffPart
from vqshield.reproduction.kl import DivergencePart
from vqshield.reproduction.part import Part
from vqshield.reproduction.pictures import ExamplePart, GalleryPart

SHOWS = ("table", "curves", "gallery", "example")
_KINDS: dict[str, type[Part]] = {
    kind.kind: kind for kind in (AccuracyPart, CertifiedPart, DivergencePart, GalleryPart, ExamplePart)
}
_DERIVED: dict[str, type[DerivedPart]] = {kind.kind: kind for kind in (GapPart, TradeoffPart)}
_SUFFIX = ".toml"


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """A table or figure of the paper. text: the file, word for word."""

    id: str
    title: str
    shows: str
    parts: tuple[Part, ...]
    text: str

    @property
    def data(self) -> list[str]:
        """The data sets it needs."""
        return list(dict.fromkeys(part.data for part in self.parts if part.data is not None))


def list_experiments() -> list[str]:
    """The ids of the paper's tables and figures, in its order."""
    return [id for id in published.ids() if _bundled(id).is_file()]


def experiment(name: str) -> Experiment:
    """An experiment by its id, or from a file."""
    if name.endswith(_SUFFIX):
        path = Path(name)
        if not path.is_file():
            raise InvalidInputError(f"{name} is no file; give an experiment file, or an id: {_ids()}")
        return read(read_text(path), source=name)
    if name not in list_experiments():
        raise InvalidInputError(f"experiment {name!r} is not known; give one of {_ids()}, or a .toml file")
    return read(_bundled(name).read_text(encoding="utf-8"), source=f"{name}{_SUFFIX}")


def read(text: str, *, source: str) -> Experiment:
    """An experiment from the text of its file."""
    table = parse_toml(text, source)
    _refuse(table, ("id", "title", "shows", "parts"), (), source, "the file")
    try:
        checks.one_of("id", table["id"], published.ids())
        checks.one_of("shows", table["shows"], SHOWS)
        _check_form("title", table["title"], str)
        tables = table["parts"]
        if not isinstance(tables, list) or not tables or not all(isinstance(each, dict) for each in tables):
            raise InvalidInputError(f"parts={tables!r} should be one [[parts]] or more")
        parts = [part for number, each in enumerate(tables) for part in _parts(each, source, number)]
        names = [part.name for part in parts]
        for name in names:
            if names.count(name) > 1:
                raise InvalidInputError(f"two parts have the name {name!r}; give each its own")
    except InvalidInputError as error:
        raise FileFormatError(f"{source}: {error}") from error
    return Experiment(
        id=table["id"], title=table["title"], shows=table["shows"], parts=tuple(parts), text=text
    )


def _parts(table: dict[str, Any], source: str, number: int) -> list[Part]:
    where = f"part {number + 1}"
    if isinstance(table.get("name"), str):
        where += f" ({table['name']})"
    try:
        return _made(table, source, where)
    except InvalidInputError as error:
        raise FileFormatError(f"{source}, {where}: {error}") from error


def _made(table: dict[str, Any], source: str, where: str) -> list[Part]:
    if "kind" not in table:
        _refuse(table, ("kind",), table, source, where)
    kind = checks.one_of("kind", table["kind"], [*_KINDS, *_DERIVED])
    if kind in _DERIVED:
        _refuse(table, ("kind", "of"), ("data",), source, where)
        return _views(_DERIVED[kind], table["of"], table.get("data"))
    known = [field for field in fields(_KINDS[kind]) if field.init]
    required = [f.name for f in known if f.default is MISSING and f.default_factory is MISSING]
    optional = [f.name for f in known if f.name not in required]
    _refuse(table, ("kind", *required), optional, source, where)
    for field in known:
        if field.name in table:
            _check_form(field.name, table[field.name], field.type)
    values = {key: _plain(value) for key, value in table.items() if key != "kind"}
    return [_KINDS[kind](**values)]


def _views(kind: type[DerivedPart], of: str, data: list[str] | None) -> list[Part]:
    """Every part of the other experiment, or those of some data sets, shown anew."""
    checks.one_of("of", of, list_experiments())
    if data is not None:
        _check_form("data", data, tuple[str, ...])
    found: list[Part] = [
        kind(name=f"{of}-{part.name}", title=part.title, data=part.data, of=of, source=part)
        for part in experiment(of).parts
        if isinstance(part, AccuracyPart) and (data is None or part.data in data)
    ]
    if not found:
        raise InvalidInputError(
            f"of={of!r}, data={data} leaves no accuracies; give an experiment that has some"
        )
    return found


def _check_form(key: str, value: Any, kind: Any) -> None:
    """Refuse text for a list and the like; numbers are looked at where they are used."""
    if get_origin(kind) is tuple:
        member = get_args(kind)[0]
        allowed = (int, float) if member is float else member
        right = isinstance(value, list) and all(
            isinstance(each, allowed) and not isinstance(each, bool) for each in value
        )
        wanted = {str: "a list of texts", int: "a list of whole numbers"}.get(member, "a list of numbers")
    elif get_origin(kind) is Mapping:
        right = isinstance(value, dict) and all(isinstance(each, str) for each in value.values())
        wanted = "a table of texts"
    elif kind in (str, str | None):
        right, wanted = isinstance(value, str), "a text"
    else:
        return
    if not right:
        raise InvalidInputError(f"{key}={value!r} should be {wanted}")


def _plain(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _refuse(table: dict[str, Any], required: tuple[str, ...], optional: Any, source: str, where: str) -> None:
    known = [*required, *optional]
    for key in table:
        if key not in known:
            raise FileFormatError(
                f"{source}, {where}: unknown key {key!r}; known are {', '.join(map(str, known))}"
            )
    for key in required:
        if key not in table:
            raise FileFormatError(f"{source}, {where}: {key!r} is missing; it is required")


def _bundled(id: str) -> Any:
    return resources.files("vqshield.reproduction.paper") / f"{id}{_SUFFIX}"


def _ids() -> str:
    return ", ".join(list_experiments())
