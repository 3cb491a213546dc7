"""The values of a part as tables: the paper's, ours, their difference. Missing values are dashes."""

import math
from dataclasses import dataclass
from typing import Literal

from vqshield.reports.table import Cell, Column, Row, Table
from vqshield_paper.reports.comparison import gap
from vqshield_paper.reports.rounding import error_decimals, share_decimals, signed
from vqshield_paper.reproduction.model import SPREADS, PartSummary, Spread, Value

NOTHING = "\N{EN DASH}"
_MARK = "(SE)"
"""Marks a ± over images in a table that also has some over runs."""

Entry = Literal["paper", "ours", "difference"]
_ENTRIES: dict[Entry, str] = {"paper": "paper", "ours": "ours", "difference": "Δ"}
"""What a cell may show, and what a heading calls that."""


@dataclass(frozen=True, kw_only=True)
class _Cell:
    """One value as text: "83.42 ± 0.13" of the paper, "77.50 ± 0.20" of ours, "−5.92" between them.

    Attributes:
        count: how many images, where that differs from row to row; else empty.
    """

    paper: str
    ours: str
    difference: str
    count: str
    far_below: bool


@dataclass(frozen=True, kw_only=True)
class _Heading:
    """A column: an attack, or none.

    Attributes:
        count: its number of images, where the columns differ; else empty.
        shown: the entries of its cells that are worth a place: no paper, no column of dashes.
    """

    key: str
    title: str
    knowing: bool
    count: str
    shown: tuple[Entry, ...]


def screen_table(part: PartSummary, *, title: str = "") -> Table:
    """For a page or a terminal: a column per attack, the paper's value and the difference below ours.

    Where nothing was measured, only the paper's values are shown.
    """
    headings, lines = _headings(part), _lines(part)
    return Table(
        title=title,
        columns=[
            Column("defense", "defense"),
            *(
                Column(
                    each.key,
                    each.title + (f" (N\xa0=\xa0{each.count})" if each.count else ""),
                    "percent",
                    help="knows of the shield" if each.knowing else "",
                    mark="bad" if each.knowing else "",
                )
                for each in headings
            ),
        ],
        rows=[
            [name, *(_screen_cell(each, cell) for each, cell in zip(headings, cells, strict=True))]
            for name, cells in lines
        ],
        caption=_legend(part, lines, "red"),
    )


def _screen_cell(heading: _Heading, cell: _Cell) -> Cell:
    if heading.shown == ("paper",):
        return Cell(cell.paper)
    notes = [f"N = {cell.count}"] if cell.count else []
    notes += [f"paper {cell.paper}"] if "paper" in heading.shown else []
    notes += [f"Δ {cell.difference}"] if cell.difference != NOTHING else []
    return Cell(cell.ours, notes=notes, mark="low" if cell.far_below else "")


def document_table(part: PartSummary) -> Table:
    """For a document: a column for each of the paper's value, ours and their difference."""
    headings, lines = _headings(part), _lines(part)

    def row(name: Cell, cells: list[_Cell]) -> Row:
        found = [name]
        for heading, cell in zip(headings, cells, strict=True):
            texts = {"paper": cell.paper, "ours": cell.ours, "difference": cell.difference}
            for entry in heading.shown:
                ours = entry == "ours"
                notes = (f"N = {cell.count}",) if ours and cell.count else ()
                found.append(Cell(texts[entry], notes=notes, mark="low" if ours and cell.far_below else ""))
        return found

    return Table(
        title="",
        columns=[
            Column("defense", "defense"),
            *(
                Column(
                    f"{each.key}_{entry}",
                    _ENTRIES[entry] + (f" (N = {each.count})" if each.count and entry == "ours" else ""),
                    "number",
                    group=each.title,
                )
                for each in headings
                for entry in each.shown
            ),
        ],
        rows=[row(name, cells) for name, cells in lines],
        caption=_legend(part, lines, "bold"),
    )


def _headings(part: PartSummary) -> list[_Heading]:
    counts = {column.key: _counts(part, column.key) for column in part.columns}
    uniform = len(set().union(*counts.values())) <= 1
    measured = any(value.ours is not None for *_, value in part.filled())
    return [
        _Heading(
            key=column.key,
            title=column.title,
            knowing=column.knowing,
            count="" if uniform or len(counts[column.key]) != 1 else str(*counts[column.key]),
            shown=_shown(part, column.key) if measured else ("paper",),
        )
        for column in part.columns
    ]


def _lines(part: PartSummary) -> list[tuple[Cell, list[_Cell]]]:
    """Each row's name and values as text.

    The paper's have the decimals that it prints. Ours, and the difference, have no more than these, and no
    more than their standard error allows (see rounding): of 8 images there is no 0.25 of a percent.
    """
    marked = _MARK in _spread_words(part)
    return [
        (
            Cell(row.title, notes=("as published",), mark="quoted") if row.literature else Cell(row.title),
            [
                _cell(
                    row.value(column.key),
                    scale=part.scale,
                    paper_places=_paper_decimals(part),
                    places=_our_decimals(part, column.key, row.value(column.key)),
                    counted=len(_counts(part, column.key)) > 1,
                    marked=marked,
                    far_below=bool((found := gap(part, row, column)) and found.far_below),
                )
                for column in part.columns
            ],
        )
        for row in part.rows
    ]


def _legend(part: PartSummary, lines: list[tuple[Cell, list[_Cell]]], far_below: str) -> str:
    """How to read the table; far_below says how the format at hand shows such a value."""
    unit = "points" if part.unit == "%" and part.only_differences else part.unit
    words = [f"Values in {unit}"] if unit else []
    words += [f"± {spread}"] if (spread := _spread_words(part)) else []
    if any("difference" in heading.shown for heading in _headings(part)):
        words.append(f"Δ: ours minus the paper's{', in points' if unit in ('%', 'points') else ''}")
    if any(cell.far_below for _, cells in lines for cell in cells):
        words.append(
            f"{far_below}: far below the accuracy under attacks that ignore the shield, on the same images"
        )
    return "; ".join(words) + "." if words else ""


def _cell(
    value: Value,
    *,
    scale: float,
    paper_places: int,
    places: int,
    counted: bool,
    marked: bool,
    far_below: bool,
) -> _Cell:
    def text(mean: float | None, spread: float | None, places: int, mark: str = "") -> str:
        if mean is None:
            return NOTHING
        shown = signed(scale * mean, places).lstrip("+")
        return shown if spread is None else f"{shown} ± {scale * spread:.{places}f}{mark}"

    kind = _spread(value)
    apart = None if value.paper is None or value.ours is None else scale * (value.ours - value.paper)
    return _Cell(
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
