"""The values that the paper published, to compare with measured ones.

They are transcribed in paper/published.toml as the paper writes them; here every accuracy is a fraction, and
every KL divergence is in nats.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Literal, get_args

from vqshield.core import checks
from vqshield.core.errors import FileFormatError, InvalidInputError
from vqshield.core.files import parse_toml
from vqshield.core.serialization import from_plain
from vqshield.core.settings import parse_spec

Data = Literal["mnist", "cifar10", "cifar100", "imagenet"]
DATA: tuple[str, ...] = get_args(Data)
TableMeasure = Literal[
    "natural", "pgd", "autoattack", "ste_pgd", "ste_autoattack", "eot_pgd", "eot_autoattack"
]
CurveMeasure = Literal["natural", "autoattack", "certified", "kl", "gap"]
PaperUnit = Literal["percent", "fraction", "nats", "none"]
"""How the paper writes values; "none" is the unit of a section without any."""

_FILE = "published.toml"
_PLACE = "{x}"
"""What x is filled into, in the defense of a curve."""
_DIGITS = 12  # 83.42 percent becomes the float that 0.8342 is read as


@dataclass(frozen=True, kw_only=True)
class PublishedValue:
    """One number of the paper.

    defense: spec string, "swrd:size=3,codes=25", without swRD's β; literature: other authors' defense.
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
    """A table or plot of the paper, with the label in its source; galleries have no values."""

    label: str
    caption: str
    unit: PaperUnit
    values: tuple[PublishedValue, ...]


@dataclass(frozen=True, kw_only=True)
class Inconsistency:
    """Where the paper contradicts itself; ids: the tables and plots concerned."""

    ids: tuple[str, ...]
    text: str


@dataclass(frozen=True, kw_only=True)
class Catalogue:
    """All that the paper published, by id, and what is known to be wrong with it."""

    sections: Mapping[str, Published]
    inconsistencies: tuple[Inconsistency, ...]


def ids() -> list[str]:
    """The tables and plots by the names that vqshield gives them: T1 … T5, F1 … F10, A1, E1."""
    return list(_catalogue().sections)


def section(id: str) -> Published:
    """What the paper published in one of its tables or plots."""
    return _catalogue().sections[checks.one_of("id", id, ids())]


def inconsistencies(id: str) -> list[str]:
    """What in that table or plot contradicts itself or the rest of the paper; often nothing."""
    checks.one_of("id", id, ids())
    return [each.text for each in _catalogue().inconsistencies if id in each.ids]


def find(
    values: Iterable[PublishedValue], *, data: str, defense: str, measure: str, x: float | None = None
) -> PublishedValue | None:
    """The value of that defense, however its settings are ordered; None: not published.

    x tells apart what is plotted at several eps (F7, F8), or in two plots at once (F9).
    """
    wanted = parse_spec(defense)
    found = [
        each
        for each in values
        if (each.data, each.measure) == (data, measure)
        and each.defense is not None
        and parse_spec(each.defense) == wanted
        and x in (None, each.x)
    ]
    if len(found) > 1:
        places = ", ".join(f"{each.x:g}" for each in found if each.x is not None)
        raise InvalidInputError(
            f"x={x} leaves {len(found)} values of {measure!r} of {defense!r} on {data!r}; "
            f"give x as one of {places}"
        )
    return found[0] if found else None


@cache
def _catalogue() -> Catalogue:
    file = resources.files("vqshield_paper.reproduction.paper") / _FILE
    return read_catalogue(file.read_text(encoding="utf-8"), source=_FILE)


@dataclass(frozen=True, kw_only=True)
class _Row:
    """A line of a table, as the file has it."""

    data: Data
    defense: str | None = None
    literature: str | None = None
    natural: float | None = None
    natural_std: float | None = None
    pgd: float | None = None
    pgd_std: float | None = None
    autoattack: float | None = None
    autoattack_std: float | None = None
    ste_pgd: float | None = None
    ste_pgd_std: float | None = None
    ste_autoattack: float | None = None
    ste_autoattack_std: float | None = None
    eot_pgd: float | None = None
    eot_pgd_std: float | None = None
    eot_autoattack: float | None = None
    eot_autoattack_std: float | None = None


@dataclass(frozen=True, kw_only=True)
class _Curve:
    """A curve of a plot, as the file has it."""

    data: Data
    defense: str
    measure: CurveMeasure
    x: tuple[float, ...]
    y: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class _Section:
    label: str
    caption: str
    unit: PaperUnit
    rows: tuple[_Row, ...] = field(default=())
    curves: tuple[_Curve, ...] = field(default=())


def read_catalogue(text: str, *, source: str) -> Catalogue:
    """The values in a text of published.toml's form; source: the file's name, for errors."""
    content = parse_toml(text, source)
    listed = content.pop("inconsistencies", [])
    where = f"inconsistencies of {source}"
    known = from_plain(tuple[Inconsistency, ...], listed, where)
    sections = {}
    for id, table in content.items():
        sections[id] = _published(from_plain(_Section, table, f"{id} of {source}"), f"{id} of {source}")
    for each in known:
        for id in each.ids:
            if id not in sections:
                raise FileFormatError(f"ids={id!r} in {where} should be one of {', '.join(sections)}")
    return Catalogue(sections=sections, inconsistencies=known)


def _published(table: _Section, where: str) -> Published:
    divisor = 100 if table.unit == "percent" else 1
    values = [value for row in table.rows for value in _of_row(row, divisor, where)]
    values += [value for curve in table.curves for value in _of_curve(curve, divisor, where)]
    return Published(label=table.label, caption=table.caption, unit=table.unit, values=tuple(values))


def _of_row(row: _Row, divisor: int, where: str) -> Iterator[PublishedValue]:
    if (row.defense is None) == (row.literature is None):
        found = "neither" if row.defense is None else "both"
        raise FileFormatError(
            f"a row of {where}, of {row.data}, should have one of defense and literature; it has {found}"
        )
    for measure in get_args(TableMeasure):
        value, std = getattr(row, measure), getattr(row, f"{measure}_std")
        if value is not None:
            yield PublishedValue(
                data=row.data,
                defense=row.defense,
                literature=row.literature,
                measure=measure,
                x=None,
                value=round(value / divisor, _DIGITS),
                std=None if std is None else round(std / divisor, _DIGITS),
            )
        elif std is not None:
            raise FileFormatError(f"a row of {where} has {measure}_std={std} but no {measure}")


def _of_curve(curve: _Curve, divisor: int, where: str) -> Iterator[PublishedValue]:
    if len(curve.x) != len(curve.y):
        raise FileFormatError(
            f"a curve of {where} has {len(curve.x)} x and {len(curve.y)} y; there should be as many"
        )
    for x, y in zip(curve.x, curve.y, strict=True):
        yield PublishedValue(
            data=curve.data,
            defense=curve.defense.replace(_PLACE, f"{x:g}"),
            literature=None,
            measure=curve.measure,
            x=x,
            value=round(y / divisor, _DIGITS),
            std=None,
        )
