"""Experiment files: TOML to experiments. Unknown keys are errors, and so are settings that cannot work.

id = "T2"; title; shows = "table" | "curves" | "gallery" | "example"
[[parts]] name, title, data, kind = "accuracy" | "certified" | "divergence" | "gallery" | "example" with the
    fields of its class; or kind = "gap" | "tradeoff", of = another experiment's id, whose parts it shows
    again
"""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from vqshield.core import checks
from vqshield.core.errors import FileFormatError, InvalidInputError
from vqshield.core.files import parse_toml, read_text
from vqshield.core.serialization import Json, from_plain
from vqshield.core.settings import did_you_mean
from vqshield_paper.reproduction import published
from vqshield_paper.reproduction.model import View
from vqshield_paper.reproduction.parts import KINDS, VIEWS, AccuracyPart, Part, ViewPart

_SUFFIX = ".toml"


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """A table or plot of the paper. text: the file, word for word."""

    id: str
    title: str
    shows: View
    parts: tuple[Part, ...]
    text: str

    @property
    def data(self) -> list[str]:
        """The data sets it needs."""
        return list(dict.fromkeys(part.data for part in self.parts if part.data is not None))


@dataclass(frozen=True, kw_only=True)
class _File:
    """An experiment file as it stands; what a part may hold depends on its kind."""

    id: str
    title: str
    shows: View
    parts: tuple[Mapping[str, Json], ...]


@dataclass(frozen=True, kw_only=True)
class _ViewTable:
    """A part that shows another experiment's records."""

    of: str
    data: tuple[str, ...] | None = None


def list_experiments() -> list[str]:
    """The ids of the paper's tables and plots, in its order."""
    return [id for id in published.ids() if _bundled(id).is_file()]


def experiment(name: str) -> Experiment:
    """An experiment by its id, or from a file."""
    if name.endswith(_SUFFIX):
        path = Path(name)
        if not path.is_file():
            raise InvalidInputError(f"{name} is not a file; give an experiment file, or an id: {_ids()}")
        return read_experiment(read_text(path), source=name)
    name = next((id for id in list_experiments() if id.lower() == name.lower()), name)
    if name not in list_experiments():
        near = did_you_mean(name, list_experiments())
        raise InvalidInputError(
            f"experiment {name!r} is not known; give one of {_ids()}, or a .toml file{near}"
        )
    return read_experiment(_bundled(name).read_text(encoding="utf-8"), source=f"{name}{_SUFFIX}")


def read_experiment(text: str, *, source: str) -> Experiment:
    """An experiment from the text of its file."""
    file = from_plain(_File, parse_toml(text, source), source)
    try:
        checks.one_of("id", file.id, published.ids())
        if not file.parts:
            raise InvalidInputError("parts=[] should be one [[parts]] or more")
        parts = [part for number, each in enumerate(file.parts) for part in _parts(each, source, number)]
        names = [part.name for part in parts]
        for name in names:
            if names.count(name) > 1:
                raise InvalidInputError(f"two parts have the name {name!r}; give each its own")
    except InvalidInputError as error:
        raise FileFormatError(f"{source}: {error}") from error
    return Experiment(id=file.id, title=file.title, shows=file.shows, parts=tuple(parts), text=text)


def _parts(table: Mapping[str, Json], source: str, number: int) -> list[Part]:
    where = f"{source}, part {number + 1}"
    if isinstance(table.get("name"), str):
        where += f" ({table['name']})"
    if "kind" not in table:
        raise FileFormatError(f"{where} has no 'kind', which it needs")
    rest: dict[str, Any] = {key: value for key, value in table.items() if key != "kind"}
    try:
        kind = checks.one_of("kind", table["kind"], [*KINDS, *VIEWS])
        if kind in VIEWS:
            return _views(VIEWS[kind], from_plain(_ViewTable, rest, where))
        return [from_plain(KINDS[kind], rest, where)]
    except InvalidInputError as error:
        raise FileFormatError(f"{where}: {error}") from error


def _views(kind: type[ViewPart], table: _ViewTable) -> list[Part]:
    """Every part of the other experiment, or those of some data sets."""
    checks.one_of("of", table.of, list_experiments())
    found: list[Part] = [
        kind(name=f"{table.of}-{part.name}", title=part.title, data=part.data, of=table.of, source=part)
        for part in experiment(table.of).parts
        if isinstance(part, AccuracyPart) and (table.data is None or part.data in table.data)
    ]
    if not found:
        raise InvalidInputError(
            f"of={table.of!r}, data={table.data} leaves no accuracies; give an experiment that has some"
        )
    return found


def _bundled(id: str) -> Traversable:
    return resources.files("vqshield_paper.reproduction.paper") / f"{id}{_SUFFIX}"


def _ids() -> str:
    return ", ".join(list_experiments())
