"""A reproduced experiment's figures as text, once for every format: the paper's, ours, their difference.

A report reads the summary of an experiment and nothing else. What no one measured is a dash, never a zero.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from vqshield.reports.reproduction_comparison import gap
from vqshield.reports.reproduction_parts import (
    KNOWING,
    SPREADS,
    check,
    figure,
    figures,
    only_differences,
    scale,
)

NOTHING = "\N{EN DASH}"
MINUS = "\N{MINUS SIGN}"
_MARK = "(SE)"
"""Beside a ± over images, in a table that has some over runs too."""


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
    spread: str
    """What stands behind a ±; empty where no figure has one."""

    def legend(self, far_below: str) -> str:
        """How to read the table; far_below says how the format at hand shows such a figure."""
        words = [f"Figures in {self.unit}"] if self.unit else []
        words += [f"± {self.spread}"] if self.spread else []
        if any("difference" in heading.shown for heading in self.headings):
            words.append(f"Δ: ours less the paper's{', in points' if self.unit in ('%', 'points') else ''}")
        if any(cell.far_below for line in self.lines for cell in line.cells):
            words.append(
                f"{far_below}: far below what is left on the same images by attacks that ignore the shield"
            )
        return "; ".join(words) + "." if words else ""


def grid(part: Mapping[str, Any]) -> Grid:
    """The figures of a part as text, with as many decimals as the paper prints."""
    check(part)
    factor, places, spread = scale(part), _decimals(part), _spread_words(part)
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
                        marked=_MARK in spread,
                        far_below=bool((left := gap(part, row, column)) and left.far_below),
                    )
                    for column in part["columns"]
                ),
            )
            for row in part["rows"]
        ),
        measured=measured,
        unit="points" if part["unit"] == "%" and only_differences(part) else part["unit"],
        spread=spread,
    )


def signed(value: float, places: int) -> str:
    """A difference with its sign, and a zero without one."""
    text = f"{abs(value):.{places}f}"
    return text if not float(text) else f"{MINUS if value < 0 else '+'}{text}"


def spread_text(values: Iterable[int | None]) -> str:
    """The distinct values in order: "1000" or "500 / 1000"."""
    return " / ".join(map(str, sorted({value for value in values if value is not None})))


def _cell(
    found: Mapping[str, Any], *, factor: float, places: int, counted: bool, marked: bool, far_below: bool
) -> Cell:
    def text(name: str, spread: str | None) -> str:
        if found.get(name) is None:
            return NOTHING
        shown = signed(factor * found[name], places).lstrip("+")
        if spread is None or found.get(spread) is None:
            return shown
        mark = f" {_MARK}" if marked and spread == "standard_error" else ""
        return f"{shown} ± {factor * found[spread]:.{places}f}{mark}"

    paper, ours = found.get("paper"), found.get("ours")
    apart = None if paper is None or ours is None else factor * (ours - paper)
    return Cell(
        paper=text("paper", "paper_std"),
        ours=text("ours", _spread(found)),
        difference=NOTHING if apart is None else signed(apart, places),
        count=str(found["n"]) if counted and ours is not None and found.get("n") is not None else "",
        far_below=far_below,
    )


def _spread(found: Mapping[str, Any]) -> str | None:
    """What the ± of our figure is: over runs like the paper's, else over images."""
    return next((name for name in SPREADS if found.get(name) is not None), None)


def _spread_words(part: Mapping[str, Any]) -> str:
    """What stands behind the ± of those figures that have one; the rarer kind is marked where both occur."""
    found = [each for *_, each in figures(part)]
    kinds = {_spread(each) for each in found if each.get("ours") is not None}
    if any(each.get("paper") is not None and each.get("paper_std") is not None for each in found):
        kinds.add("std")
    words = [text for name, text in SPREADS.items() if name in kinds]
    return f"{words[0]}, with {_MARK} {words[1]}" if len(words) > 1 else "".join(words)


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
