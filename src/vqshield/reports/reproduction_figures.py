"""A reproduced experiment's figures as text, once for every format: the paper's, ours, their difference.

A report reads the summary of an experiment and nothing else. What no one measured is a dash, never a zero.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from vqshield.errors import InvalidInputError

NOTHING = "\N{EN DASH}"
MINUS = "\N{MINUS SIGN}"
KNOWING = ("ste", "eot", "adaptive")
"""Levels of attacks that take the defense into account; an "ignorant" one attacks the bare classifier."""
FAR_BELOW = 0.05
"""At least so much less is left than by the attacks of the paper, and less than half: shown in red."""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One figure in words: "83.42 ± 0.13" of the paper, "77.50 ± 0.20" of ours, "−5.92" between them."""

    paper: str
    ours: str
    difference: str
    count: str
    """How many images, where that differs from line to line; else empty."""
    far_below: bool


@dataclass(frozen=True, kw_only=True)
class Heading:
    """A column: an attack, or none; count is its number of images where the columns differ."""

    title: str
    knowing: bool
    count: str
    shown: tuple[str, ...]
    """The fields of its cells that are worth a place: no paper, no column of dashes."""


@dataclass(frozen=True, kw_only=True)
class Line:
    """A defense; published says that its figures were taken from the literature."""

    title: str
    published: bool
    cells: tuple[Cell, ...]


@dataclass(frozen=True, kw_only=True)
class Grid:
    """The table of a part; where nothing was measured, the paper's figures stand alone."""

    headings: tuple[Heading, ...]
    lines: tuple[Line, ...]
    measured: bool
    unit: str
    """How a reader calls the figures: "%", "nats" or nothing; differences of percentages are points."""

    def legend(self, far_below: str) -> str:
        """How to read the table; far_below says how the format at hand shows such a figure."""
        words = [f"Figures in {self.unit}"] if self.unit else []
        words += ["± standard deviation over runs"]
        if any("difference" in heading.shown for heading in self.headings):
            words.append(f"Δ: ours less the paper's{', in points' if self.unit == '%' else ''}")
        if any(cell.far_below for line in self.lines for cell in line.cells):
            words.append(f"{far_below}: far below what is left by attacks that ignore the shield")
        return "; ".join(words) + "."


def grid(part: Mapping[str, Any]) -> Grid:
    """The figures of a part as text, with as many decimals as the paper prints."""
    _check(part)
    factor, places = scale(part), _decimals(part)
    counts = {column["key"]: _counts(part, column["key"]) for column in part["columns"]}
    uniform = len(set().union(*counts.values())) <= 1
    measured = any(each.get("ours") is not None for *_, each in figures(part))
    return Grid(
        headings=tuple(
            Heading(
                title=column["title"],
                knowing=column["level"] in KNOWING,
                count="" if uniform or len(counts[column["key"]]) != 1 else str(*counts[column["key"]]),
                shown=_shown(part, column["key"], measured),
            )
            for column in part["columns"]
        ),
        lines=tuple(
            Line(
                title=row["title"],
                published=bool(row.get("literature")),
                cells=tuple(
                    _cell(
                        figure(row, column["key"]),
                        factor=factor,
                        places=places,
                        counted=len(counts[column["key"]]) > 1,
                        far_below=_is_far_below(part, row, column),
                    )
                    for column in part["columns"]
                ),
            )
            for row in part["rows"]
        ),
        measured=measured,
        unit=part["unit"],
    )


def figure(row: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """What a row says in a column; an empty dict where it says nothing."""
    return row["figures"].get(key) or {}


def figures(
    part: Mapping[str, Any],
) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any], Mapping[str, Any]]]:
    """Every row, column and figure that a part has."""
    for row in part["rows"]:
        for column in part["columns"]:
            if found := figure(row, column["key"]):
                yield row, column, found


def has_figures(part: Mapping[str, Any], key: str) -> bool:
    """Whether a column has a figure at all, the paper's or ours."""
    return any(figure(row, key).get(name) is not None for row in part["rows"] for name in ("paper", "ours"))


def scale(part: Mapping[str, Any]) -> float:
    """What a value is multiplied by to be shown: fractions are shown in percent."""
    return 100.0 if part["unit"] == "%" else 1.0


def gap(part: Mapping[str, Any], row: Mapping[str, Any]) -> tuple[float, float] | None:
    """What is left of a defense by attacks that ignore it, and by those that know it; the lowest of each."""
    if part["unit"] != "%" or row.get("literature"):
        return None
    left: dict[bool, list[float]] = {True: [], False: []}
    for column in part["columns"]:
        ours = figure(row, column["key"]).get("ours")
        if ours is not None and column["level"] in (*KNOWING, "ignorant"):
            left[column["level"] in KNOWING].append(ours)
    return (min(left[False]), min(left[True])) if left[False] and left[True] else None


def signed(value: float, places: int) -> str:
    """A difference with its sign, and a zero without one."""
    text = f"{abs(value):.{places}f}"
    return text if not float(text) else f"{MINUS if value < 0 else '+'}{text}"


def spread_text(values: Iterable[int | None]) -> str:
    """The distinct values in order: "1000" or "500 / 1000"."""
    return " / ".join(map(str, sorted({value for value in values if value is not None})))


def _cell(found: Mapping[str, Any], *, factor: float, places: int, counted: bool, far_below: bool) -> Cell:
    def text(name: str, spread: str) -> str:
        if found.get(name) is None:
            return NOTHING
        shown = f"{factor * found[name]:.{places}f}"
        return shown if found.get(spread) is None else f"{shown} ± {factor * found[spread]:.{places}f}"

    paper, ours = found.get("paper"), found.get("ours")
    apart = None if paper is None or ours is None else factor * (ours - paper)
    return Cell(
        paper=text("paper", "paper_std"),
        ours=text("ours", "std"),
        difference=NOTHING if apart is None else signed(apart, places),
        count=str(found["n"]) if counted and ours is not None and found.get("n") is not None else "",
        far_below=far_below,
    )


def _is_far_below(part: Mapping[str, Any], row: Mapping[str, Any], column: Mapping[str, Any]) -> bool:
    ours, left = figure(row, column["key"]).get("ours"), gap(part, row)
    if ours is None or left is None or column["level"] not in KNOWING:
        return False
    return bool(ours < left[0] / 2 and ours <= left[0] - FAR_BELOW)


def _shown(part: Mapping[str, Any], key: str, measured: bool) -> tuple[str, ...]:
    column = [figure(row, key) for row in part["rows"]]
    paper = [each.get("paper") is not None for each in column]
    both = [known and each.get("ours") is not None for known, each in zip(paper, column, strict=True)]
    if not measured:
        return ("paper",)
    return (*(["paper"] if any(paper) else []), "ours", *(["difference"] if any(both) else []))


def _counts(part: Mapping[str, Any], key: str) -> set[int]:
    found = (figure(row, key) for row in part["rows"])
    return {each["n"] for each in found if each.get("ours") is not None and each.get("n") is not None}


def _decimals(part: Mapping[str, Any]) -> int:
    """As many as the paper prints, within reason; a fixed number where it prints nothing."""
    least, most = (1, 2) if part["unit"] == "%" else (2, 4)
    values = [scale(part) * each["paper"] for *_, each in figures(part) if each.get("paper") is not None]
    for places in range(least, most):
        if values and all(math.isclose(value, round(value, places), abs_tol=1e-9) for value in values):
            return places
    return most if values else most - 1


def _check(part: Mapping[str, Any]) -> None:
    """Refuse what no format could show honestly."""
    where = f"part {part['name']!r}"
    if part["unit"] not in ("%", "nats", ""):
        raise InvalidInputError(f"unit={part['unit']!r} of {where} is unknown; valid are '%', 'nats' and ''")
    for row in part["rows"]:
        if row.get("x") is not None and not _is_number(row["x"]):
            raise InvalidInputError(
                f"x={row['x']!r} of {row['title']!r} in {where} is neither a number nor None"
            )
    for row, column, found in figures(part):
        place = f"of {row['title']!r}, {column['key']!r} in {where}"
        for name in ("paper", "paper_std", "ours", "std", "standard_error"):
            value = found.get(name)
            if value is None:
                continue
            if not _is_number(value):
                raise InvalidInputError(f"{name}={value!r} {place} is no figure; valid are numbers and None")
            if part["unit"] == "%" and not 0 <= value <= 1:
                raise InvalidInputError(
                    f"{name}={value!r} {place} is no share; valid are fractions in [0, 1]"
                )


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
