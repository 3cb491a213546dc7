"""What `vqshield reproduce` recorded, as docs/reproduction.md needs it: beside the paper, and how far."""

import json
from collections.abc import Iterable, Iterator, Mapping
from itertools import combinations
from pathlib import Path
from typing import Any

from vqshield.reproduction.accuracy import AccuracyPart
from vqshield.reproduction.budgets import BudgetPart
from vqshield.reproduction.derived import DerivedPart
from vqshield.reproduction.files import experiment
from vqshield.reproduction.part import Part as PlannedPart

RESULTS = Path(__file__).resolve().parents[1] / "results"
MEASURED, RECIPE = "reproduction", "reproduction-paper-recipe"
DATA = {"mnist": "MNIST", "cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "imagenet": "ImageNet"}
ADAPTIVE = "adaptive"

Part = dict[str, Any]
Row = dict[str, Any]


def read(name: str) -> dict[str, Any]:
    """One file of results/."""
    content: dict[str, Any] = json.loads((RESULTS / name).read_text())
    return content


def begun(id: str) -> bool:
    """Has it been measured, in part at least?"""
    return (RESULTS / MEASURED / id / "summary.json").is_file()


def summary(id: str, folder: str = MEASURED) -> dict[str, Any]:
    """The summary of a table or figure."""
    return read(f"{folder}/{id}/summary.json")


def part(id: str, folder: str = MEASURED, name: str | None = None) -> Part:
    """What was measured on one data set; without a name, of records that hold one alone."""
    parts = {each["name"]: each for each in summary(id, folder)["parts"]}
    if name is None:
        (name,) = parts
    found: Part = parts[name]
    return found


def rows(found: Part) -> list[Row]:
    """Those that could be measured: not what others published."""
    return [row for row in found["rows"] if not row["literature"]]


def row(found: Part, defense: str) -> Row:
    """The row of a defense, by how it is typed."""
    return next(each for each in rows(found) if each["defense"] == defense)


def cell(found: Row, key: str) -> dict[str, Any]:
    """A figure; nothing measured, nothing published where there is none."""
    return {"ours": None, "paper": None, **found["figures"].get(key, {})}


def scale(found: Part) -> int:
    """What makes points of fractions."""
    return 100 if found["unit"] == "%" else 1


def differences(found: Part, key: str) -> dict[str, float]:
    """Ours less the paper's, by the row's title; in points, or in the unit."""
    cells = {each["title"]: cell(each, key) for each in rows(found)}
    return {
        title: scale(found) * (each["ours"] - each["paper"])
        for title, each in cells.items()
        if each["ours"] is not None and each["paper"] is not None
    }


def compared(found: Part) -> list[tuple[str, str, dict[str, float]]]:
    """Key, title and differences of every column that the paper has too."""
    columns = [
        (column["key"], column["title"], differences(found, column["key"])) for column in found["columns"]
    ]
    return [each for each in columns if each[2]]


def same_order(found: Part, key: str) -> tuple[int, int]:
    """Of how many pairs of rows both say which is the larger; and alike."""
    cells = [cell(each, key) for each in rows(found)]
    both = [each for each in cells if each["ours"] is not None and each["paper"] is not None]
    decided = [
        (one["ours"] > other["ours"], one["paper"] > other["paper"])
        for one, other in combinations(both, 2)
        if one["ours"] != other["ours"] and one["paper"] != other["paper"]
    ]
    return sum(ours == paper for ours, paper in decided), len(decided)


def mean_distance(deltas: Mapping[Any, float]) -> float:
    """Of ours from the paper's."""
    return sum(map(abs, deltas.values())) / len(deltas)


def most_left(found: Part, key: str = ADAPTIVE) -> float | None:
    """The largest of our figures in a column, in percent."""
    values = [each for each in (cell(each, key)["ours"] for each in rows(found)) if each is not None]
    return 100 * max(values) if values else None


def curve(found: Part, series: str, key: str, whose: str) -> dict[float, float]:
    """One curve: y in percent or in its unit, by x."""
    cells = [(each["x"], cell(each, key)[whose]) for each in rows(found) if each["series"] == series]
    return {x: scale(found) * y for x, y in cells if y is not None}


def all_series(found: Part) -> list[str]:
    """The curves of a plot."""
    return list(dict.fromkeys(each["series"] for each in rows(found)))


def images(found: Part, *, adaptive: bool = False) -> int:
    """The most images that a figure was measured on; adaptive: by the suite. 0: there are no figures."""
    counts = [
        each.get("n") or 0
        for row in rows(found)
        for key, each in row["figures"].items()
        if (key == ADAPTIVE) == adaptive
    ]
    return max(counts, default=0)


def missing(found: Part) -> list[str]:
    """The cells of our own that are not there, in words."""
    return [
        f"{each['title']} under {column['title'].replace(', ', '+')}"
        for each in rows(found)
        for column in found["columns"]
        if column["key"] in each["figures"] and cell(each, column["key"])["ours"] is None
        if each["defense"] != "none" or column["key"] != ADAPTIVE
    ]


def planned(id: str) -> Iterator[tuple[PlannedPart, Part | None]]:
    """Every part that the experiment's file has, and what was measured of it."""
    measured = {each["name"]: each for each in summary(id)["parts"]} if begun(id) else {}
    for each in experiment(id).parts:
        yield each, measured.get(each.name)


def asked(plan: PlannedPart) -> int | None:
    """How many images the file asks for; None: it names them, or needs none."""
    source = plan.source if isinstance(plan, DerivedPart) else plan
    return source.count if isinstance(source, AccuracyPart | BudgetPart) else None


def place(each: PlannedPart) -> str:
    """The data set of a part, for people."""
    name = DATA[each.data] if each.data is not None else "computed"
    return f"{name} from {each.of}" if isinstance(each, DerivedPart) else name


def signed(value: float, digits: int = 1) -> str:
    """+1.2, −3.4."""
    return f"{value:+.{digits}f}".replace("-", "−")


def listed(names: Iterable[str]) -> str:
    """a, b and c."""
    *some, last = names
    return f"{', '.join(some)} and {last}" if some else last
