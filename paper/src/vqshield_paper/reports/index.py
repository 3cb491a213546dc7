"""One page over all reproduced experiments of a folder, with links to their reports."""

import json
from pathlib import Path

from vqshield.core.errors import FileFormatError, InvalidInputError
from vqshield.core.files import write_atomically
from vqshield.core.serialization import from_plain
from vqshield.reports.html import page
from vqshield.reports.table import Cell, Column, Row, Table
from vqshield.reports.text import duration
from vqshield_paper.reports.comparison import headline
from vqshield_paper.reports.pages import TEMPLATES
from vqshield_paper.reports.provenance import section_title
from vqshield_paper.reproduction import published
from vqshield_paper.reproduction.model import Summary

INDEX = "index.html"


def write_index(folder: str | Path) -> Path:
    """Write index.html: of every experiment below the folder its id, title, status and headline.

    Args:
        folder: OUT of `vqshield reproduce`, which holds a folder for every experiment.

    Raises:
        InvalidInputError: none of its folders has a summary.json.
        FileFormatError: a summary.json cannot be read.
    """
    found = {path.parent: read_summary(path) for path in Path(folder).glob("*/summary.json")}
    if not found:
        raise InvalidInputError(
            f"found no summary.json in any folder of {folder}; give OUT of vqshield reproduce"
        )
    order = published.ids()
    ranked = sorted(
        (order.index(summary.id) if summary.id in order else len(order), summary.id, where)
        for where, summary in found.items()
    )
    table = Table(
        title="The paper's results, measured again",
        columns=[
            Column("experiment", "Experiment"),
            Column("status", "Status"),
            Column("found", "What was found"),
        ],
        rows=[_row(where, found[where]) for *_, where in ranked],
    )
    text = page("index.html", folder=TEMPLATES, title=table.title, table=table.html())
    write_atomically(Path(folder) / INDEX, text.encode())
    return Path(folder) / INDEX


def read_summary(path: Path) -> Summary:
    """What a summary.json holds; unknown keys are ignored."""
    try:
        plain = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise FileFormatError(f"{path} is not JSON: {error}") from error
    return from_plain(Summary, plain, str(path), strict=False)


def _row(folder: Path, summary: Summary) -> Row:
    """Id, status and headline of an experiment; the id leads to its report, where there is one."""
    states = {part.status for part in summary.parts}
    status = "complete" if summary.complete else "not run" if states <= {"not run"} else "partial"
    undone = [f"{section_title(part)}: {part.status}" for part in summary.parts if part.status != "complete"]
    has_report = (folder / "report.html").is_file()
    return [
        Cell(summary.id, notes=[summary.title], file=f"{folder.name}/report.html" if has_report else None),
        Cell(status, notes=[*undone, duration(summary.seconds)], mark="good" if summary.complete else "bad"),
        headline(summary),
    ]
