"""The values of a part as text, once for every format: the paper's, ours, their difference.

What nobody measured is a dash, never a zero.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from vqshield_paper.reports.comparison import gap
from vqshield_paper.reports.rounding import error_decimals, share_decimals, signed
from vqshield_paper.reproduction.model import SPREADS, PartSummary, Spread, Value

NOTHING = "\N{EN DASH}"
_MARK = "(SE)"
"""Beside a ± over images, in a table that has some over runs too."""

Entry = Literal["paper", "ours", "difference"]
ENTRIES: dict[Entry, str] = {"paper": "paper", "ours": "ours", "difference": "Δ"}
"""What a cell may show, and what a heading calls that."""


@dataclass(frozen=True, kw_only=True)
class GridCell:
    """One value in words: "83.42 ± 0.13" of the paper, "77.50 ± 0.20" of ours, "−5.92" between them.

    Attributes:
        count: how many images, where that differs from line to line; else empty.
    """

    paper: str
    ours: str
    difference: str
    count: str
    far_below: bool

    def text(self, entry: Entry) -> str:
        """What it says in one of its entries."""
        return {"paper": self.paper, "ours": self.ours, "difference": self.difference}[entry]


@dataclass(frozen=True, kw_only=True)
class Heading:
    """A column: an attack, or none.

    Attributes:
        count: its number of images, where the columns differ; else empty.
        shown: the entries of its cells that are worth a place: no paper, no column of dashes.
    """

    title: str
    knowing: bool
    count: str
    shown: tuple[Entry, ...]


@dataclass(frozen=True, kw_only=True)
class GridLine:
    """A defense; published says that its values were taken from the literature."""

    title: str
    published: bool
    cells: tuple[GridCell, ...]


@dataclass(frozen=True, kw_only=True)
class Grid:
    """The table of a part; where nothing was measured, the paper's values stand alone.

    Attributes:
        unit: what a reader calls the values: "%", "nats" or nothing; differences of percentages are points.
        spread: what stands behind a ±; empty where no value has one.
    """

    headings: tuple[Heading, ...]
    lines: tuple[GridLine, ...]
    measured: bool
    unit: str
    spread: str

    def entries(self, line: GridLine) -> Iterator[tuple[str, bool, str]]:
        """A line of a table with a column per entry: its text, whether it is far below, how many images."""
        for heading, cell in zip(self.headings, line.cells, strict=True):
            for entry in heading.shown:
                ours = entry == "ours"
                count = f" (N = {cell.count})" if ours and cell.count else ""
                yield cell.text(entry), ours and cell.far_below, count

    def legend(self, far_below: str) -> str:
        """How to read the table; far_below says how the format at hand shows such a value."""
        words = [f"Values in {self.unit}"] if self.unit else []
        words += [f"± {self.spread}"] if self.spread else []
        if any("difference" in heading.shown for heading in self.headings):
            words.append(f"Δ: ours minus the paper's{', in points' if self.unit in ('%', 'points') else ''}")
        if any(cell.far_below for line in self.lines for cell in line.cells):
            words.append(
                f"{far_below}: far below what is left on the same images by attacks that ignore the shield"
            )
        return "; ".join(words) + "." if words else ""


def grid_of(part: PartSummary) -> Grid:
    """The values of a part as text.

    The paper's have the decimals that it prints. Ours, and the difference, have no more than these, and no
    more than their standard error allows (see rounding): of 8 images there is no 0.25 of a percent.
    """
    spread = _spread_words(part)
    counts = {column.key: _counts(part, column.key) for column in part.columns}
    uniform = len(set().union(*counts.values())) <= 1
    measured = any(value.ours is not None for *_, value in part.filled())
    return Grid(
        headings=tuple(
            Heading(
                title=column.title,
                knowing=column.knowing,
                count="" if uniform or len(counts[column.key]) != 1 else str(*counts[column.key]),
                shown=_shown(part, column.key) if measured else ("paper",),
            )
            for column in part.columns
        ),
        lines=tuple(
            GridLine(
                title=row.title,
                published=row.literature,
                cells=tuple(
                    _cell(
                        row.value(column.key),
                        scale=part.scale,
                        paper_places=_paper_decimals(part),
                        places=_our_decimals(part, column.key, row.value(column.key)),
                        counted=len(counts[column.key]) > 1,
                        marked=_MARK in spread,
                        far_below=bool((found := gap(part, row, column)) and found.far_below),
                    )
                    for column in part.columns
                ),
            )
            for row in part.rows
        ),
        measured=measured,
        unit="points" if part.unit == "%" and part.only_differences else part.unit,
        spread=spread,
    )


def _cell(
    value: Value,
    *,
    scale: float,
    paper_places: int,
    places: int,
    counted: bool,
    marked: bool,
    far_below: bool,
) -> GridCell:
    def text(mean: float | None, spread: float | None, places: int, mark: str = "") -> str:
        if mean is None:
            return NOTHING
        shown = signed(scale * mean, places).lstrip("+")
        return shown if spread is None else f"{shown} ± {scale * spread:.{places}f}{mark}"

    kind = _spread(value)
    apart = None if value.paper is None or value.ours is None else scale * (value.ours - value.paper)
    return GridCell(
        paper=text(value.paper, value.paper_std, paper_places),
        ours=text(
            value.ours,
            value.spread(kind) if kind else None,
            places,
            f" {_MARK}" if marked and kind == "standard_error" else "",
        ),
        difference=NOTHING if apart is None else signed(apart, places),
        count=str(value.n) if counted and value.ours is not None and value.n is not None else "",
        far_below=far_below,
    )


def _spread(value: Value) -> Spread | None:
    """What the ± of our value is: over runs like the paper's, else over images."""
    return next((kind for kind in SPREADS if value.spread(kind) is not None), None)


def _spread_words(part: PartSummary) -> str:
    """What stands behind the ± of those values that have one; the rarer kind is marked where both occur."""
    values = [value for *_, value in part.filled()]
    kinds = {_spread(value) for value in values if value.ours is not None}
    if any(value.paper is not None and value.paper_std is not None for value in values):
        kinds.add("std")
    words = [text for kind, text in SPREADS.items() if kind in kinds]
    return f"{words[0]}, with {_MARK} {words[1]}" if len(words) > 1 else "".join(words)


def _shown(part: PartSummary, key: str) -> tuple[Entry, ...]:
    """Ours, and of the paper's and the difference what occurs."""
    published = [value for row in part.rows if (value := row.value(key)).paper is not None]
    both = any(value.ours is not None for value in published)
    return (*(("paper",) if published else ()), "ours", *(("difference",) if both else ()))


def _counts(part: PartSummary, key: str) -> set[int]:
    values = (row.value(key) for row in part.rows)
    return {value.n for value in values if value.ours is not None and value.n is not None}


def _paper_decimals(part: PartSummary) -> int:
    """As many as the paper prints, within reason; a fixed number where it prints nothing."""
    least, most = (1, 2) if part.unit == "%" else (2, 4)
    printed = [part.scale * value.paper for *_, value in part.filled() if value.paper is not None]
    for places in range(least, most):
        if printed and all(math.isclose(value, round(value, places), abs_tol=1e-9) for value in printed):
            return places
    return most if printed else most - 1


def _our_decimals(part: PartSummary, key: str, value: Value) -> int:
    """No more than the paper's. A share: what the fewest images of its column allow; else, its own error."""
    most = _paper_decimals(part)
    if part.unit == "%":
        counts = _counts(part, key)
        return min(most, share_decimals(min(counts))) if counts else most
    return min(most, error_decimals(value.standard_error)) if value.standard_error else most
