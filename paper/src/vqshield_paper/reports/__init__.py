"""Reports of a reproduced experiment: the paper's values next to ours, as page, Markdown, LaTeX and plots.

They read its Summary and nothing else.
"""

import re
from pathlib import Path

from vqshield.core.errors import InvalidInputError
from vqshield.core.files import write_atomically
from vqshield_paper.reports.index import write_index
from vqshield_paper.reports.latex import render_latex
from vqshield_paper.reports.markdown import render_markdown
from vqshield_paper.reports.page import render_html
from vqshield_paper.reports.plots import part_plots
from vqshield_paper.reports.terminal import caveats, terminal_tables
from vqshield_paper.reproduction.model import Summary

__all__ = ["caveats", "terminal_tables", "write_index", "write_report"]

_NAME = re.compile(r"[\w.-]+", re.ASCII)


def write_report(summary: Summary, folder: str | Path) -> list[Path]:
    """Write report.html, report.md, report.tex and the plots; all are made before the first is written."""
    for part in summary.parts:
        if not _NAME.fullmatch(part.name):
            raise InvalidInputError(
                f"part name {part.name!r} does not fit a file's name; "
                "valid are letters, digits, '.', '_' and '-'"
            )
    plots = {part.name: part_plots(part, summary.view) for part in summary.parts}
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
