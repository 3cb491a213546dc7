"""What `vqshield reproduce` recorded, as docs/reproduction.md needs it: with distances to the paper."""

from collections.abc import Iterator, Mapping
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any, Literal

import recorded
from vqshield_paper.reproduction.experiments import experiment
from vqshield_paper.reproduction.model import Column, PartSummary, Row, Summary
from vqshield_paper.reproduction.parts import AccuracyPart, Part, ViewPart
from vqshield_paper.reproduction.parts.budgets import BudgetPart

MEASURED = "reproduction"
DATA = {"mnist": "MNIST", "cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "imagenet": "ImageNet"}
ADAPTIVE = "adaptive"

Whose = Literal["paper", "ours"]


def begun(id: str) -> bool:
    """Has it been measured, in part at least?"""
    return (recorded.RESULTS / MEASURED / id / "summary.json").is_file()


def summary(id: str, folder: str = MEASURED) -> Summary:
    """The results of a table or plot."""
    return _read(recorded.RESULTS / folder / id / "summary.json")


@cache
def _read(path: Path) -> Summary:
    return recorded.read(Summary, path)


def part(id: str, folder: str = MEASURED, name: str | None = None) -> PartSummary:
    """What was measured on one data set; without a name, of records that hold one alone."""
    parts = {each.name: each for each in summary(id, folder).parts}
    if name is None:
        (name,) = parts
    return parts[name]


def rows(found: PartSummary) -> list[Row]:
    """Those that could be measured: not what others published."""
    return [row for row in found.rows if not row.literature]


def row(found: PartSummary, defense: str) -> Row:
    """The row of a defense, by the text that names it."""
    return next(each for each in rows(found) if each.defense == defense)


def differences(found: PartSummary, key: str) -> dict[str, float]:
    """Ours less the paper's, by the row's title; in points, or in the unit."""
    values = {each.title: each.value(key) for each in rows(found)}
    return {
        title: found.scale * (each.ours - each.paper)
        for title, each in values.items()
        if each.ours is not None and each.paper is not None
    }


def compared(found: PartSummary) -> list[tuple[Column, dict[str, float]]]:
    """Every column that the paper has too, with the differences."""
    columns = [(column, differences(found, column.key)) for column in found.columns]
    return [(column, deltas) for column, deltas in columns if deltas]


def same_order(found: PartSummary, key: str) -> tuple[int, int]:
    """Of how many pairs of rows both say which is the larger; and alike."""
    values = [each.value(key) for each in rows(found)]
    both = [(each.ours, each.paper) for each in values if each.ours is not None and each.paper is not None]
    decided = [
        (one[0] > other[0], one[1] > other[1])
        for one, other in combinations(both, 2)
        if one[0] != other[0] and one[1] != other[1]
    ]
    return sum(ours == paper for ours, paper in decided), len(decided)


def mean_distance(deltas: Mapping[Any, float]) -> float:
    """Of ours from the paper's."""
    return sum(map(abs, deltas.values())) / len(deltas)


def most_left(found: PartSummary, key: str = ADAPTIVE) -> float | None:
    """The largest of our values in a column, in percent."""
    values = [each for each in (each.value(key).ours for each in rows(found)) if each is not None]
    return 100 * max(values) if values else None


def curve(found: PartSummary, series: str, key: str, whose: Whose) -> dict[float, float]:
    """One curve: y in percent or in its unit, by x."""
    points = [(each.x, getattr(each.value(key), whose)) for each in rows(found) if each.series == series]
    return {x: found.scale * y for x, y in points if x is not None and y is not None}


def all_series(found: PartSummary) -> list[str]:
    """The curves of a plot."""
    return list(dict.fromkeys(each.series for each in rows(found) if each.series is not None))


def images(found: PartSummary, *, adaptive: bool = False) -> int:
    """The most images that a value was measured on; adaptive: by the suite. 0: nothing was measured."""
    counts = [
        value.n or 0
        for each in rows(found)
        for key, value in each.values.items()
        if (key == ADAPTIVE) == adaptive
    ]
    return max(counts, default=0)


def suite(found: PartSummary) -> str:
    """The suite of attacks that know of the shield."""
    return next(column.title for column in found.columns if column.key == ADAPTIVE)


def missing(found: PartSummary) -> list[str]:
    """Which values of our own are missing, as text."""
    return [
        f"{each.title} under {column.title.replace(', ', '+')}"
        for each, column, value in found.filled()
        if not each.literature and value.ours is None
        if each.defense != "none" or column.key != ADAPTIVE
    ]


def planned(id: str) -> Iterator[tuple[Part, PartSummary | None]]:
    """Every part that the experiment's file has, and what was measured of it."""
    measured = {each.name: each for each in summary(id).parts} if begun(id) else {}
    for each in experiment(id).parts:
        yield each, measured.get(each.name)


def asked(plan: Part) -> int | None:
    """How many images the file asks for; None: it names them, or needs none."""
    source = plan.source if isinstance(plan, ViewPart) else plan
    return source.count if isinstance(source, AccuracyPart | BudgetPart) else None


def place(plan: Part) -> str:
    """The data set of a part, for people."""
    name = DATA[plan.data] if plan.data is not None else "computed"
    return f"{name} from {plan.of}" if isinstance(plan, ViewPart) else name
