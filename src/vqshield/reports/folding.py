"""Tables for terminals and logs of any width: a wide table wraps into several, and no value is cut."""

from collections.abc import Sequence

from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.table import Column, Table
from rich.text import Text

_NAME = 12  # characters in a line of a folded name
_ENDLESS = 10_000  # characters: as wide as a table would like to be


class FoldingTable(Table):
    """A table that is printed in pieces where it is wider than its terminal, and never cut.

    Its first columns, those that may be folded (overflow="fold"), hold names: they are folded first, and
    repeated in every piece. All others hold values, each in one line: a value cut short is a wrong value.
    """

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The pieces, one below the other, the title above the first and the caption below the last."""
        names = [column for column in self.columns if column.overflow == "fold"]
        pieces: list[list[Column]] = [[]]
        for column in [column for column in self.columns if column.overflow != "fold"]:
            wider = [*names, *pieces[-1], column]
            if pieces[-1] and self._least_width(console, options, wider) > options.max_width:
                pieces.append([])
            pieces[-1].append(column)
        for place, values in enumerate(pieces):
            piece = self._piece(console, options, [*names, *values])
            piece.title = self.title if place == 0 else None
            piece.caption = self.caption if len(pieces) == 1 else None
            yield piece
        if self.caption and len(pieces) > 1:  # a piece may be too narrow to set it below
            words = Text(self.caption) if isinstance(self.caption, str) else self.caption.copy()
            words.stylize("table.caption")
            yield words

    def _piece(self, console: Console, options: ConsoleOptions, columns: Sequence[Column]) -> Table:
        """A table of these columns alone, made to fit."""
        wide = options.update_width(_ENDLESS)
        piece = self._copy(columns)
        if Measurement.get(console, wide, piece).maximum <= options.max_width:
            return piece
        fits = self._least_width(console, options, columns) <= options.max_width
        for column in piece.columns:
            if column.overflow != "fold" and fits:
                column.width = _least(console, wide, column)
            column.overflow = "fold"
        return piece

    def _least_width(self, console: Console, options: ConsoleOptions, columns: Sequence[Column]) -> int:
        """The width of these columns with every name folded."""
        wide = options.update_width(_ENDLESS)
        piece = self._copy(columns)
        for column in piece.columns:
            column.width = _least(console, wide, column)
        return Measurement.get(console, wide, piece).minimum

    def _copy(self, columns: Sequence[Column]) -> Table:
        copies = [column.copy() for column in columns]
        piece = Table(*copies, box=self.box, padding=self.padding, pad_edge=self.pad_edge)
        for row, *cells in zip(self.rows, *(column.cells for column in columns), strict=True):
            piece.add_row(*cells, style=row.style, end_section=row.end_section)
        return piece


def _least(console: Console, options: ConsoleOptions, column: Column) -> int:
    """The least width: a name may be folded, a heading wrapped between words, a value neither."""
    header = Measurement.get(console, options, column.header)
    longest = max((Measurement.get(console, options, cell).maximum for cell in column.cells), default=1)
    if column.overflow == "fold":
        return min(max(header.maximum, longest), _NAME)
    return max(header.minimum, longest)
