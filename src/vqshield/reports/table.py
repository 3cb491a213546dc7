"""The demo's figures as a table in the terminal."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from vqshield.errors import MissingExtraError
from vqshield.reports.pivot import THREATS, Cell, percent, pivot

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

NOT_RUN = "not run"


def demo_table(summary: Mapping[str, Any]) -> "Table":
    """One line per defense, one column per threat; mean accuracy in percent ± standard deviation."""
    try:
        from rich import box
        from rich.text import Text

        from vqshield.reports.folding import FoldingTable
    except ImportError as error:
        raise MissingExtraError("rich", "cli") from error
    figures = pivot(summary["rows"])
    counts = sorted({cell.n for line in figures.lines for cell in line.cells.values()})
    table = FoldingTable(
        title=Text(str(summary.get("title", "Accuracy in percent"))),
        caption=f"accuracy in %, ± standard deviation over runs, N = {' / '.join(map(str, counts))} images",
        box=box.SIMPLE_HEAD,
    )
    table.add_column("Defense", overflow="fold")
    for threat in figures.threats:
        table.add_column(THREATS[threat], justify="right", max_width=20)
    names = [line.defense for line in figures.lines]
    for line in figures.lines:
        name = Text(line.defense, style="bold")
        if (
            names.count(line.defense) > 1
        ):  # only then: a terminal is narrow, and the other reports name them all
            name.append(f"\n{line.settings}", style="not bold dim")
        table.add_row(name, *(_figure(line.cells.get(threat)) for threat in figures.threats))
    return table


def _figure(cell: Cell | None) -> "Text":
    from rich.text import Text

    if cell is None:
        return Text(NOT_RUN, style="dim")
    text = Text(percent(cell.mean), style="bold red" if cell.collapsed else "bold")
    if cell.std is not None:
        text.append(f" ± {percent(cell.std)}", style="not bold dim")
    return text
