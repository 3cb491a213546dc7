"""Reports of a reproduced experiment: the paper's figures beside ours, as page, Markdown, LaTeX and plots.

They read the summary of the experiment and nothing else.
"""

import re
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vqshield.errors import InvalidInputError, MissingExtraError
from vqshield.files import write_atomically
from vqshield.reports.reproduction_facts import headline, part_audit, part_facts, part_warnings, warnings
from vqshield.reports.reproduction_figures import NOTHING, Cell, Grid, Heading, grid
from vqshield.reports.reproduction_html import render_html
from vqshield.reports.reproduction_parts import check
from vqshield.reports.reproduction_plots import part_plots
from vqshield.reports.reproduction_text import render_latex, render_markdown

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

KINDS = ("table", "curves", "gallery", "example")
_NAME = re.compile(r"[\w.-]+", re.ASCII)


def write_report(summary: Mapping[str, Any], folder: str | Path) -> list[Path]:
    """Write report.html, report.md, report.tex and the plots; all are made before the first is written."""
    _check(summary)
    plots = {part["name"]: part_plots(part, part.get("kind") or summary["kind"]) for part in summary["parts"]}
    named = {name: [(f"{plot.name}.png", plot.text) for plot in each] for name, each in plots.items()}
    files = {
        "report.html": render_html(summary, plots).encode(),
        "report.md": render_markdown(summary, named).encode(),
        "report.tex": render_latex(summary).encode(),
    }
    for plot in (plot for each in plots.values() for plot in each):
        files |= {f"{plot.name}.png": plot.png, f"{plot.name}.svg": plot.svg}
    written = []
    for name, content in files.items():
        write_atomically(Path(folder) / name, content)
        written.append(Path(folder) / name)
    return written


def terminal_table(summary: Mapping[str, Any]) -> "list[Table]":
    """A table for every part that has figures: ours in bold, below them the paper's and the difference."""
    try:
        from rich import box
        from rich.table import Table
        from rich.text import Text
    except ImportError as error:
        raise MissingExtraError("rich", "cli") from error
    _check(summary)
    tables = []
    for part in (part for part in summary["parts"] if part["rows"]):
        figures = grid(part)
        table = Table(
            title=Text(f"{summary['id']}: {part['title']}"),
            caption=Text(figures.legend("red")),
            box=box.SIMPLE_HEAD,
            padding=(0, 1, 0, 0),
            pad_edge=False,
        )
        table.add_column("defense", overflow="fold", min_width=12)
        for heading in figures.headings:
            counted = [f"N = {heading.count}"] if heading.count else []
            name = "\n".join([*textwrap.wrap(heading.title, 12), *counted])
            # A figure that is cut short is a wrong figure.
            table.add_column(
                Text(name, style="red" if heading.knowing else ""), justify="right", no_wrap=True
            )
        for line in figures.lines:
            title = Text(line.title)
            if line.published:
                title.append("\nas published", style="dim")
            pairs = zip(figures.headings, line.cells, strict=True)
            table.add_row(title, *(_shown(figures, heading, cell) for heading, cell in pairs))
        tables.append(table)
    return tables


def caveats(summary: Mapping[str, Any]) -> list[str]:
    """What must be said beside the tables in the terminal: the finding, what is missing, what stands in."""
    lines = warnings(summary) + [sentence for sentence in [headline(summary)] if sentence]
    for part in summary["parts"]:
        facts = "; ".join(f"{name}: {text}" for name, text in part_facts(part))
        said = [*part_warnings(part), facts, *(heading for heading, _ in part_audit(part))]
        lines += [f"{part['title']}: {line}" for line in said if line]
    return lines + [f"Known of the paper: {note}" for note in summary.get("notes") or ()]


def _shown(figures: Grid, heading: Heading, cell: Cell) -> "Text":
    from rich.text import Text

    if not figures.measured:
        return Text(cell.paper)
    text = Text(cell.ours, style="bold red" if cell.far_below else "bold")
    if cell.count:
        text.append(f"\nN = {cell.count}", style="not bold dim")
    if "paper" in heading.shown:
        text.append(f"\npaper {cell.paper}", style="not bold dim")
    if cell.difference != NOTHING:
        text.append(f"\nΔ {cell.difference}", style="not bold dim")
    return text


def _check(summary: Mapping[str, Any]) -> None:
    names = [part["name"] for part in summary["parts"]]
    for kind in (summary["kind"], *(part["kind"] for part in summary["parts"] if part.get("kind"))):
        if kind not in KINDS:
            raise InvalidInputError(f"kind={kind!r} is unknown; valid are {', '.join(KINDS)}")
    for name in names:
        if not _NAME.fullmatch(name):
            raise InvalidInputError(
                f"part name {name!r} does not fit a file's name; valid are letters, digits, '.', '_' and '-'"
            )
        if names.count(name) > 1:
            raise InvalidInputError(f"part name {name!r} occurs twice; give every part a name of its own")
    for part in summary["parts"]:
        check(part)
