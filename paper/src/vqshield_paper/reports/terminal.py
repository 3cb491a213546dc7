"""A reproduced experiment in the terminal: tables, and what must be said beside them."""

import textwrap
from typing import TYPE_CHECKING

from vqshield.core.errors import MissingExtraError
from vqshield_paper.reports.comparison import headline
from vqshield_paper.reports.grid import NOTHING, Grid, GridCell, Heading, grid_of
from vqshield_paper.reports.notices import part_audits, part_warnings, unfinished
from vqshield_paper.reports.provenance import part_facts, section_title
from vqshield_paper.reproduction.model import Summary

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text


def terminal_tables(summary: Summary) -> "list[Table]":
    """A table for every part that has values: ours in bold, below them the paper's and the difference."""
    try:
        from rich import box
        from rich.text import Text

        from vqshield.reports.folding import FoldingTable
    except ImportError as error:
        raise MissingExtraError("rich", "cli") from error
    tables: list[Table] = []
    for part in (part for part in summary.parts if part.rows):
        grid = grid_of(part)
        table = FoldingTable(
            title=Text(f"{summary.id}: {section_title(part)}"),
            caption=Text(grid.legend("red")),
            box=box.SIMPLE_HEAD,
            padding=(0, 1, 0, 0),
            pad_edge=False,
        )
        table.add_column("defense", overflow="fold")
        for heading in grid.headings:
            counted = [f"N = {heading.count}"] if heading.count else []
            name = "\n".join([*textwrap.wrap(heading.title, 12), *counted])
            table.add_column(Text(name, style="red" if heading.knowing else ""), justify="right")
        for line in grid.lines:
            title = Text(line.title)
            if line.published:
                title.append("\nas published", style="dim")
            pairs = zip(grid.headings, line.cells, strict=True)
            table.add_row(title, *(_shown(grid, heading, cell) for heading, cell in pairs))
        tables.append(table)
    return tables


def caveats(summary: Summary) -> list[str]:
    """What must be said beside the tables in the terminal: the finding, what is missing, what stands in."""
    lines = [line for line in (*unfinished(summary), headline(summary)) if line]
    for part in summary.parts:
        facts = "; ".join(f"{name}: {text}" for name, text in part_facts(part))
        said = [*part_warnings(part), facts, *(heading for heading, _ in part_audits(part))]
        lines += [f"{section_title(part)}: {line}" for line in said if line]
    return lines + [f"Note on the paper: {note}" for note in summary.notes]


def _shown(grid: Grid, heading: Heading, cell: GridCell) -> "Text":
    from rich.text import Text

    if not grid.measured:
        return Text(cell.paper)
    text = Text(cell.ours, style="bold red" if cell.far_below else "bold")
    if cell.count:
        text.append(f"\nN = {cell.count}", style="not bold dim")
    if "paper" in heading.shown:
        text.append(f"\npaper {cell.paper}", style="not bold dim")
    if cell.difference != NOTHING:
        text.append(f"\nΔ {cell.difference}", style="not bold dim")
    return text
