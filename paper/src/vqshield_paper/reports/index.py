"""One page over all reproduced experiments of a folder, with links to their reports."""

import json
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from vqshield.core.errors import FileFormatError, InvalidInputError
from vqshield.core.files import write_atomically
from vqshield.core.serialization import from_plain
from vqshield.reports.html import page
from vqshield.reports.numbers import duration
from vqshield_paper.reports.comparison import headline
from vqshield_paper.reports.pages import TEMPLATES
from vqshield_paper.reports.provenance import section_title
from vqshield_paper.reproduction import published
from vqshield_paper.reproduction.model import Summary

INDEX = "index.html"


@dataclass(frozen=True, kw_only=True)
class _Entry:
    """A line of the page; link: its report, where there is one."""

    id: str
    title: str
    link: str | None
    status: str
    undone: list[str]
    headline: str | None
    time: str


def write_index(folder: str | Path) -> Path:
    """Write index.html: of every experiment below the folder its id, title, status and headline.

    Args:
        folder: OUT of `vqshield reproduce`, which holds a folder for every experiment.

    Raises:
        InvalidInputError: there is no summary.json in any folder of it.
        FileFormatError: a summary.json cannot be read.
    """
    found = {path.parent: read_summary(path) for path in Path(folder).glob("*/summary.json")}
    if not found:
        raise InvalidInputError(
            f"there is no summary.json in any folder of {folder}; give OUT of vqshield reproduce"
        )
    order = published.ids()
    entries = [_entry(where, summary) for where, summary in found.items()]
    entries.sort(key=lambda each: (order.index(each.id) if each.id in order else len(order), each.id))
    text = page(
        "index.html", folder=TEMPLATES, title="The paper's tables and figures, measured", entries=entries
    )
    write_atomically(Path(folder) / INDEX, text.encode())
    return Path(folder) / INDEX


def read_summary(path: Path) -> Summary:
    """What a summary.json holds; keys that nobody here knows are passed over."""
    try:
        plain = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise FileFormatError(f"{path} is not JSON: {error}") from error
    return from_plain(Summary, plain, str(path), strict=False)


def _entry(folder: Path, summary: Summary) -> _Entry:
    states = {part.status for part in summary.parts}
    return _Entry(
        id=summary.id,
        title=summary.title,
        link=f"{quote(folder.name)}/report.html" if (folder / "report.html").is_file() else None,
        status="complete" if summary.complete else "not run" if states <= {"not run"} else "partial",
        undone=[
            f"{section_title(part)}: {part.status}" for part in summary.parts if part.status != "complete"
        ],
        headline=headline(summary),
        time=duration(summary.seconds),
    )
