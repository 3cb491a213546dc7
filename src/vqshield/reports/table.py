"""Results as a table with typed columns, shown in a terminal, HTML, Markdown, LaTeX, CSV, JSON and pandas."""

import csv
import io
import json
import math
import textwrap
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import quote

from vqshield.core.entry_points import require
from vqshield.core.errors import InvalidInputError
from vqshield.models.draws import Accuracy
from vqshield.reports.html import page
from vqshield.reports.text import duration, escape_cell, escape_latex, markdown_table

if TYPE_CHECKING:
    from rich.text import Text

    from vqshield.reports.folding import FoldingTable

Kind = Literal["text", "percent", "number", "count", "seconds"]
Mark = Literal["", "low", "struck", "good", "bad", "unsure", "quoted"]
Spread = Literal["standard_error", "std"]
Value = str | int | float | Accuracy | None

_FORMATS: dict[Kind, str] = {"percent": ".1f", "number": ".3g", "count": ",.0f"}
_STYLES: dict[Mark, str] = {
    "low": "red", "struck": "red", "good": "green", "bad": "red", "unsure": "yellow", "quoted": "dim",
}  # fmt: skip
_CLASSES: dict[Mark, str] = {
    "low": "collapsed", "struck": "doubted", "good": "pass outcome", "bad": "fail outcome",
    "unsure": "outcome", "quoted": "published",
}  # fmt: skip
_SPREAD = ("std", "standard_error", "runs", "n")  # what records say of an accuracy besides its mean
_HEADING = 20  # characters in a line of a heading in a terminal
_FORMULA = ("=", "+", "-", "@", "\t", "\r")  # how a cell begins that a spreadsheet would compute


@dataclass(frozen=True)
class Column:
    """A column: its heading, and what kind of values it has.

    A column of "percent" holds fractions. Any column may hold text instead of numbers.
    """

    name: str  # in CSV, JSON and pandas
    title: str
    kind: Kind = "text"
    _: KW_ONLY
    group: str = ""  # of this column and its neighbours, above their titles
    help: str = ""  # a line below the heading, in HTML
    mark: Mark = ""  # of the heading
    format: str = ""  # Python's format specification of its numbers
    unit: str = ""  # after each number, as in 12.3/255
    spread: Spread = "standard_error"  # of an accuracy, after its mean
    ascending: bool = False  # whether a first click on the heading sorts low numbers first

    @property
    def heading(self) -> str:
        """Its title, after its group's."""
        return f"{self.group}: {self.title}" if self.group else self.title

    def text(self, value: Value) -> str:
        """A value as people read it, with its spread: "67.3 ± 1.2"."""
        return " ± ".join(filter(None, self.parts(value)))

    def parts(self, value: Value) -> tuple[str, str]:
        """A value, and its spread where it has one: ("67.3", "1.2"); "67.3 ± 1.2" may be given as text."""
        if isinstance(value, Accuracy):
            return self._number(value.mean), self._number(getattr(value, self.spread))
        if self.kind != "text" and not isinstance(value, str | None):
            return self._number(value), ""
        text, _, spread = ("" if value is None else str(value)).partition(" ± ")
        return text, spread

    def _number(self, value: float) -> str:
        if self.kind == "seconds":
            return duration(value)
        scaled = 100 * value if self.kind == "percent" else value
        return f"{scaled:{self.format or _FORMATS.get(self.kind, '')}}{self.unit}"


@dataclass(frozen=True)
class Note:
    """A line below a value. file: next to the page, which it leads to; url: the same on the web."""

    text: str
    _: KW_ONLY
    file: str | None = None
    url: str | None = None

    def __post_init__(self) -> None:
        if self.url is not None and not self.url.startswith("https://"):
            raise InvalidInputError(f"url={self.url!r}: expected an address that begins with https://")

    @property
    def href(self) -> str | None:
        """The address of a link."""
        return _file_address(self.file) or self.url


@dataclass(frozen=True)
class Cell:
    """A value that says more than its number.

    Marks are "low" and "struck" (doubtful) for accuracies, "good", "bad" and "unsure" for verdicts, and
    "quoted" for the name of a row that was not measured here.
    """

    value: Value
    _: KW_ONLY
    notes: Sequence[str | Note] = ()  # lines below it, or why the value is missing
    mark: Mark = ""
    badges: Sequence[str] = ()  # words after it, as in "JPEG (baseline)"
    file: str | None = None  # next to the page or document, which the value leads to

    @property
    def lines(self) -> list[Note]:
        """The notes."""
        return [Note(each) if isinstance(each, str) else each for each in self.notes]

    @property
    def reason(self) -> str:
        """The notes in one line."""
        return "; ".join(each.text for each in self.lines)

    @property
    def href(self) -> str | None:
        """The address of its link: of a file, never of another host."""
        return _file_address(self.file)

    @property
    def sorted_by(self) -> str | float | None:
        """What a page sorts it by."""
        return self.value.mean if isinstance(self.value, Accuracy) else self.value


@dataclass(frozen=True)
class Section:
    """A heading among the rows, above those of one defense; without a title, a rule."""

    title: str = ""


Row = Sequence[Cell | Value]


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table of results, and every form it is shown in.

    The first columns, as long as they are text, name the rows: they are set to the left, and repeated where a
    terminal is too narrow for the whole table. Where no column is text, the first names the rows.

    Raises:
        InvalidInputError: two columns have one name, or a row has more or fewer cells than there are columns.

    Example:
        >>> from vqshield.reports.table import Cell, Column, Section, Table
        >>> from vqshield.models.draws import Accuracy
        >>> robust = Accuracy(mean=0.123, std=0.01, standard_error=0.033, runs=5, n=100)
        >>> table = Table(
        ...     title="CIFAR-10, small classifier",
        ...     columns=[Column("attack", "attack"), Column("accuracy", "accuracy in %", "percent")],
        ...     rows=[Section("swRD"), ["natural", 0.81], ["PGD", Cell(robust, mark="low")], ["APGD", None]],
        ...     missing="not run",
        ... )
        >>> print(table.markdown())
        | attack | accuracy in % |
        |---|---:|
        | **swRD** |  |
        | natural | 81.0 |
        | PGD | 12.3 ± 3.3 |
        | APGD | not run |
        >>> table.records()[1]["section"], table.records()[1]["accuracy"], table.records()[1]["accuracy_n"]
        ('swRD', 0.123, 100)
    """

    title: str  # in a terminal and in JSON; pages and documents have headings of their own
    columns: Sequence[Column]
    rows: Sequence[Row | Section]  # a Section precedes its rows
    caption: str = ""  # one line: data, N, budget
    facts: Sequence[tuple[str, str]] = ()  # names and texts, for the whole table
    missing: str = "–"

    def __post_init__(self) -> None:
        names = [column.name for column in self.columns]
        if not names or len(set(names)) < len(names):
            raise InvalidInputError(f"columns={names}: expected names, each of them once")
        for row in self.rows:
            if not isinstance(row, Section) and len(row) != len(names):
                raise InvalidInputError(f"row {row!r} has {len(row)} cells: expected {len(names)}")

    @classmethod
    def joined(cls, tables: Sequence["Table"]) -> "Table":
        """Several tables one below the other, with the columns of all; one table alone stays as it is."""
        if len(tables) == 1:
            return tables[0]
        columns = list({column.name: column for table in tables for column in table.columns}.values())
        rows: list[Row | Section] = []
        for table in tables:
            names = [column.name for column in table.columns]
            rows.append(Section(table.title))
            for row in table.rows:
                cells = {} if isinstance(row, Section) else dict(zip(names, row, strict=True))
                title = Section(f"{table.title}: {row.title}") if isinstance(row, Section) else None
                rows.append(title or [cells.get(column.name) for column in columns])
        return cls(
            title="; ".join(table.title for table in tables),
            columns=columns,
            rows=rows,
            caption="; ".join(table.caption for table in tables),
            facts=[fact for table in tables for fact in table.facts],
        )

    def without(self, *names: str) -> "Table":
        """The table without these columns."""
        kept = [place for place, column in enumerate(self.columns) if column.name not in names]
        return replace(
            self,
            columns=[self.columns[place] for place in kept],
            rows=[row if isinstance(row, Section) else [row[place] for place in kept] for row in self.rows],
        )

    @property
    def names(self) -> int:
        """How many of the first columns name the rows."""
        numeric = [place for place, column in enumerate(self.columns) if column.kind != "text"]
        return max(1, min(numeric, default=len(self.columns)))

    def lines(self) -> Iterator[Section | list[tuple[Column, Cell]]]:
        """The rows, each cell with its column."""
        for row in self.rows:
            if isinstance(row, Section):
                yield row
            else:
                cells = (held if isinstance(held, Cell) else Cell(held) for held in row)
                yield list(zip(self.columns, cells, strict=True))

    def terminal(self, *, notes: bool = True) -> "FoldingTable":
        """For rich's Console: a table that is wider than the terminal is printed in pieces, never cut.

        Args:
            notes: whether to print the notes of cells below their values.

        Raises:
            MissingExtraError: rich is not installed.
        """
        require("rich", "cli")
        from rich.box import SIMPLE_HEAD
        from rich.text import Text

        from vqshield.reports.folding import FoldingTable

        table = FoldingTable(
            title=Text(self.title),
            caption=Text(self.caption),
            box=SIMPLE_HEAD,
            padding=(0, 1, 0, 0),
            pad_edge=False,
        )
        for place, column in enumerate(self.columns):
            style = _STYLES.get(column.mark, "")
            table.add_column(
                Text("\n".join(textwrap.wrap(column.heading, _HEADING, break_long_words=False)), style),
                justify="left" if column.kind == "text" and place < self.names else "right",
                overflow="fold" if place < self.names else "ellipsis",
            )
        for line in self.lines():
            if isinstance(line, Section):
                table.add_section()
                if line.title:
                    table.add_row(Text(line.title, style="bold"))
            else:
                table.add_row(*(self._rich(column, cell, notes=notes) for column, cell in line))
        if self.facts:
            table.add_section()
        for name, text in self.facts:
            table.add_row(Text(name, style="dim"), text)
        return table

    def _rich(self, column: Column, cell: Cell, *, notes: bool) -> "Text":
        from rich.text import Text

        value, spread = column.parts(cell.value)
        if cell.value is None:
            return Text(self.missing, style="dim")
        shown = cell.lines if notes else []
        strong = "bold" if shown or isinstance(cell.value, Accuracy) or cell.mark == "bad" else ""
        text = Text(value, style=f"{strong} {_STYLES.get(cell.mark, '')}")
        behind = [f" ± {spread}"] if spread else []
        behind += [f" ({badge})" for badge in cell.badges]
        for words in (*behind, *(f"\n{note.text}" for note in shown)):
            text.append(words, style="not bold dim")
        return text

    def html(self, *, sorted_by: str | None = None, bars: bool = False, dense: bool = False) -> str:
        """A table element for a page that extends base.html; every text is escaped.

        Args:
            sorted_by: the column that the rows are sorted by, the highest value first, in a page with
                sort.js, where a click on a heading sorts them by another (default: cannot be sorted).
            bars: whether a bar shows each percentage.
            dense: whether many columns share a line on a phone, without the number of images in each cell.

        Raises:
            MissingExtraError: jinja2 is not installed.
        """
        return page("table.html", table=self, css=_CLASSES, sorted_by=sorted_by, bars=bars, dense=dense)

    def markdown(self, *, notes: bool = False, files: bool = False, low: str = "") -> str:
        """A table as GitHub shows it.

        Args:
            notes: whether the notes of cells follow their values.
            files: whether values link to their files.
            low: what stands before and after values with the mark "low", as ** does.
        """

        def shown(column: Column, cell: Cell) -> str:
            text = escape_cell(self._text(column, cell, notes=notes))
            text = f"{low}{text}{low}" if cell.mark == "low" else text
            return f"[{text}]({cell.href})" if files and cell.href and cell.value is not None else text

        rows = []
        for line in self.lines():
            if not isinstance(line, Section):
                rows.append([shown(column, cell) for column, cell in line])
            elif line.title:
                rows.append([f"**{escape_cell(line.title)}**", *[""] * (len(self.columns) - 1)])
        table = markdown_table([escape_cell(each.heading) for each in self.columns], rows, names=self.names)
        facts = "; ".join(f"{escape_cell(name)}: {escape_cell(text)}" for name, text in self.facts)
        return f"{table}\n\n{facts}." if facts else table

    def latex(self, *, notes: bool = False, low: str = "") -> str:
        """A tabular that needs no package; columns of one group have its name above theirs.

        Args:
            notes: whether the notes of cells follow their values.
            low: the command that sets values with the mark "low", as textbf does.
        """

        def shown(column: Column, cell: Cell) -> str:
            text = escape_latex(self._text(column, cell, notes=notes))
            return rf"\{low}{{{text}}}" if low and cell.mark == "low" else text

        form = "l" * self.names + "r" * (len(self.columns) - self.names)
        lines = [rf"\begin{{tabular}}{{{form}}}", r"\hline"]
        if any(column.group for column in self.columns):
            spans = [(name, len(list(each))) for name, each in groupby(self.columns, lambda each: each.group)]
            lines.append(" & ".join(_span(name, count, "c") for name, count in spans) + r" \\")
        lines += [" & ".join(escape_latex(column.title) for column in self.columns) + r" \\", r"\hline"]
        for line in self.lines():
            if not isinstance(line, Section):
                lines.append(" & ".join(shown(column, cell) for column, cell in line) + r" \\")
            elif line.title:
                lines.append(_span(line.title, len(self.columns), "l") + r" \\")
        return "\n".join([*lines, r"\hline", r"\end{tabular}"])

    def _text(self, column: Column, cell: Cell, *, notes: bool) -> str:
        text = self.missing if cell.value is None else column.text(cell.value)
        text += "".join(f" ({badge})" for badge in cell.badges)
        return f"{text} ({cell.reason})" if notes and cell.reason else text

    def records(self) -> list[dict[str, str | float | None]]:
        """The rows as dictionaries by the columns' names, numbers as measured.

        An accuracy is its mean under the column's name, with name_std, name_standard_error, name_runs and
        name_n. Notes are in name_note, and the title of the section above a row is in "section".
        """
        records: list[dict[str, str | float | None]] = []
        section = Section()
        for line in self.lines():
            if isinstance(line, Section):
                section = line
                continue
            record: dict[str, str | float | None] = {"section": section.title} if section.title else {}
            for column, cell in line:
                record[column.name] = cell.sorted_by
                if isinstance(cell.value, Accuracy):
                    record |= {f"{column.name}_{each}": getattr(cell.value, each) for each in _SPREAD}
                if cell.notes:
                    record[f"{column.name}_note"] = cell.reason
            records.append(record)
        return records

    def csv(self) -> str:
        """The records below a line of names; no text is a formula in a spreadsheet."""
        records, stream = self.records(), io.StringIO(newline="")
        names = list(dict.fromkeys(key for record in records for key in record))
        writer = csv.writer(stream)
        writer.writerow(map(_no_formula, names or [column.name for column in self.columns]))
        for record in records:
            writer.writerow(_no_formula(record.get(name)) for name in names)
        return stream.getvalue()

    def to_json(self) -> str:
        """All of it as JSON, with null for numbers that are not finite."""
        plain = {
            "title": self.title,
            "caption": self.caption,
            "columns": [{"name": each.name, "title": each.title, "kind": each.kind} for each in self.columns],
            "rows": [
                {
                    key: value if not isinstance(value, float) or math.isfinite(value) else None
                    for key, value in record.items()
                }
                for record in self.records()
            ],
            "facts": dict(self.facts),
        }
        return json.dumps(plain, indent=1, allow_nan=False)

    def to_pandas(self) -> Any:
        """The records as a pandas.DataFrame; pandas has to be installed."""
        import pandas

        return pandas.DataFrame.from_records(self.records())


class Tabular(ABC):
    """A result that is also a table, in every form that a table has.

    Example:
        >>> found = vq.evaluate(limit=2, samples=1)
        >>> found.to_csv().splitlines()[0].split(",")[:3]
        ['section', 'attack', 'level']
        >>> print(found.to_latex().splitlines()[0])
        \\begin{tabular}{llrrrrrr}
    """

    @property
    @abstractmethod
    def table(self) -> Table:
        """The rows for terminals, pages, documents and pandas."""

    def to_json(self) -> str:
        """The table as JSON: title, columns, and a row for each result with numbers as measured."""
        return self.table.to_json()

    def to_csv(self) -> str:
        """The table as CSV, with a line of names first."""
        return self.table.csv()

    def to_latex(self) -> str:
        """The table as a LaTeX tabular that needs no package."""
        return self.table.latex()

    def to_pandas(self) -> Any:
        """The table as a pandas.DataFrame; pandas has to be installed."""
        return self.table.to_pandas()


def _file_address(file: str | None) -> str | None:
    """Of a file next to the page, never of another host."""
    return None if file is None else quote(file.lstrip("/"))


def _span(text: str, columns: int, place: Literal["l", "c"]) -> str:
    return rf"\multicolumn{{{columns}}}{{{place}}}{{{escape_latex(text)}}}" if text else ""


def _no_formula(value: object) -> object:
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value
