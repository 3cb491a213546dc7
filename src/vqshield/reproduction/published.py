"""The figures that the paper published, to be shown beside measured ones.

They are transcribed in paper/published.toml as the paper writes them; here every accuracy is a fraction, and
every KL divergence is in nats.
"""

import tomllib
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from importlib import resources
from typing import Any

from vqshield import checks
from vqshield.errors import FileFormatError, InvalidInputError
from vqshield.settings import parse_spec

DATA = ("mnist", "cifar10", "cifar100", "imagenet")
TABLE_MEASURES = ("natural", "pgd", "autoattack", "ste_pgd", "ste_autoattack", "eot_pgd", "eot_autoattack")
CURVE_MEASURES = ("natural", "autoattack", "certified", "kl", "gap")

_FILE = "published.toml"
_DIVISORS = {"percent": 100, "fraction": 1, "nats": 1, "none": 1}
"""By unit, what a value is divided by; "none" is the unit of a section without figures."""
_LISTS = ("rows", "curves", "x", "y", "ids")
_TEXTS = ("label", "caption", "unit", "data", "defense", "literature", "measure", "text")
_PLACE = "{x}"
"""What x is filled into, in the defense of a curve."""


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One number of the paper.

    defense: as typed, "swrd:size=3,codes=25", without swRD's β; literature: the name of somebody else's.
        One of them is None.
    x: where it is plotted, None in tables: k, s, noise in 1/255, or eps (a fraction on MNIST, in 1/255
        elsewhere).
    value, std: fractions, or nats for measure "kl"; std: over 10 runs, None where it was not published.
    """

    data: str
    defense: str | None
    literature: str | None
    measure: str
    x: float | None
    value: float
    std: float | None


@dataclass(frozen=True, kw_only=True)
class Published:
    """A table or figure of the paper, with the label in its source; galleries have no figures.

    unit: how the paper writes the values: percent, fraction, nats, or none where there are none.
    """

    label: str
    caption: str
    unit: str
    figures: tuple[Figure, ...]


@dataclass(frozen=True, kw_only=True)
class Inconsistency:
    """Where the paper contradicts itself, in words; ids: the tables and figures concerned."""

    ids: tuple[str, ...]
    text: str


@dataclass(frozen=True, kw_only=True)
class Catalogue:
    """All of the paper's figures by id, and what is known to be wrong with them."""

    sections: Mapping[str, Published]
    inconsistencies: tuple[Inconsistency, ...]


def ids() -> list[str]:
    """The tables and figures by the names that vqshield gives them: T1 … T5, F1 … F10, A1, E1."""
    return list(_catalogue().sections)


def published(id: str) -> Published:
    """What the paper published in one of its tables or figures."""
    return _catalogue().sections[checks.one_of("id", id, ids())]


def inconsistencies(id: str) -> list[str]:
    """What in that table or figure contradicts itself or the rest of the paper; often nothing."""
    checks.one_of("id", id, ids())
    return [each.text for each in _catalogue().inconsistencies if id in each.ids]


def find(
    figures: Iterable[Figure], *, data: str, defense: str, measure: str, x: float | None = None
) -> Figure | None:
    """The figure of that defense, however its settings are ordered; None: not published.

    x tells apart what is plotted at several eps (F7, F8), or in two plots at once (F9).
    """
    wanted = parse_spec(defense)
    found = [
        each
        for each in figures
        if (each.data, each.measure) == (data, measure)
        and each.defense is not None
        and parse_spec(each.defense) == wanted
        and x in (None, each.x)
    ]
    if len(found) > 1:
        places = ", ".join(f"{each.x:g}" for each in found if each.x is not None)
        raise InvalidInputError(
            f"x={x} leaves {len(found)} figures of {measure!r} of {defense!r} on {data!r}; "
            f"give x as one of {places}"
        )
    return found[0] if found else None


@cache
def _catalogue() -> Catalogue:
    file = resources.files("vqshield.reproduction.paper") / _FILE
    return read_catalogue(file.read_text(encoding="utf-8"), source=_FILE)


def read_catalogue(text: str, *, source: str) -> Catalogue:
    """The figures in a text of published.toml's form; source: the file's name, for errors."""
    try:
        # Decimal: 83.42 percent becomes the float that 0.8342 is read as, and x stays as it was typed.
        content = tomllib.loads(text, parse_float=Decimal)
    except tomllib.TOMLDecodeError as error:
        raise FileFormatError(f"{source} is not TOML: {error}") from error
    listed = content.pop("inconsistencies", [])
    sections = {id: _section(table, f"[{id}] of {source}") for id, table in content.items()}
    where = f"[[inconsistencies]] of {source}"
    if not isinstance(listed, list):
        raise FileFormatError(f"{where} is {listed!r}; it should be a list of tables")
    known = []
    for table in listed:
        _check_keys(table, where, needed=("ids", "text"))
        for id in table["ids"]:
            _check_choice(id, "ids", where, sections)
        known.append(Inconsistency(ids=tuple(table["ids"]), text=table["text"]))
    return Catalogue(sections=sections, inconsistencies=tuple(known))


def _section(table: Any, where: str) -> Published:
    _check_keys(table, where, needed=("label", "caption", "unit"), optional=("rows", "curves"))
    divisor = _DIVISORS[_check_choice(table["unit"], "unit", where, _DIVISORS)]
    figures = [each for row in table.get("rows", ()) for each in _of_row(row, divisor, f"a row in {where}")]
    for curve in table.get("curves", ()):
        figures += _of_curve(curve, divisor, f"a curve in {where}")
    return Published(
        label=table["label"], caption=table["caption"], unit=table["unit"], figures=tuple(figures)
    )


def _of_row(row: Any, divisor: int, where: str) -> Iterator[Figure]:
    deviations = [f"{measure}_std" for measure in TABLE_MEASURES]
    names = ("defense", "literature")
    _check_keys(row, where, needed=("data",), optional=(*names, *TABLE_MEASURES, *deviations))
    if sum(name in row for name in names) != 1:
        raise FileFormatError(f"{where} should have one of defense and literature; it has {', '.join(row)}")
    _check_choice(row["data"], "data", where, DATA)
    for measure in TABLE_MEASURES:
        std = row.get(f"{measure}_std")
        if measure in row:
            yield Figure(
                data=row["data"],
                defense=row.get("defense"),
                literature=row.get("literature"),
                measure=measure,
                x=None,
                value=_number(row[measure], measure, where, divisor),
                std=None if std is None else _number(std, f"{measure}_std", where, divisor),
            )
        elif std is not None:
            raise FileFormatError(f"{where} has {measure}_std={std} but no {measure}")


def _of_curve(curve: Any, divisor: int, where: str) -> Iterator[Figure]:
    _check_keys(curve, where, needed=("data", "defense", "measure", "x", "y"))
    _check_choice(curve["data"], "data", where, DATA)
    _check_choice(curve["measure"], "measure", where, CURVE_MEASURES)
    if len(curve["x"]) != len(curve["y"]):
        raise FileFormatError(
            f"{where} has {len(curve['x'])} x and {len(curve['y'])} y; there should be as many"
        )
    for x, y in zip(curve["x"], curve["y"], strict=True):
        yield Figure(
            data=curve["data"],
            defense=curve["defense"].replace(_PLACE, str(x)),
            literature=None,
            measure=curve["measure"],
            x=_number(x, "x", where, 1),
            value=_number(y, "y", where, divisor),
            std=None,
        )


def _number(value: Any, key: str, where: str, divisor: int) -> float:
    if isinstance(value, bool) or not isinstance(value, int | Decimal) or not Decimal(value).is_finite():
        raise FileFormatError(f"{key}={value} in {where} should be a finite number")
    return float(Decimal(value) / divisor)


def _check_keys(table: Any, where: str, *, needed: Collection[str], optional: Collection[str] = ()) -> None:
    if not isinstance(table, dict):
        raise FileFormatError(f"{where} is {table!r}; it should be a table")
    for key in table:
        if key not in needed and key not in optional:
            raise FileFormatError(
                f"{where} has the unknown key {key!r}; known are {', '.join((*needed, *optional))}"
            )
        kind = list if key in _LISTS else str if key in _TEXTS else object
        if not isinstance(table[key], kind):
            raise FileFormatError(f"{key}={table[key]!r} in {where} should be a {kind.__name__}")
    for key in needed:
        if key not in table:
            raise FileFormatError(f"{where} has no {key!r}; it needs {', '.join(needed)}")


def _check_choice(value: Any, key: str, where: str, choices: Collection[str]) -> str:
    if not isinstance(value, str) or value not in choices:
        raise FileFormatError(f"{key}={value!r} in {where} should be one of {', '.join(choices)}")
    return value
