"""Text and tables in Markdown."""

import re
from collections.abc import Iterable, Sequence

_ENTITIES = {"<": "&lt;", ">": "&gt;", "&": "&amp;"}


def escape_markdown(value: object) -> str:
    """Text that GitHub shows as it is."""
    # At a line's start these would begin a list or a heading.
    return re.sub(r"^(\d+(?=[.)](?: |$))|(?=[-+=]))", r"\1\\", escape_cell(value))


def escape_cell(value: object) -> str:
    """Text that GitHub shows as it is inside a line or a table."""
    text = " ".join(str(value).split())
    text = re.sub(r"([\\`*_{}\[\]#|~$!])", r"\\\1", text)
    return re.sub(r"[<>&]", lambda found: _ENTITIES[found[0]], text)


def markdown_table(heads: Sequence[str], rows: Iterable[Sequence[str]], *, names: int | None = None) -> str:
    """A table of cells that are Markdown already.

    Args:
        heads: the heading of each column.
        rows: as many cells each.
        names: columns after the first `names` are set to the right (default: none is).
    """
    left = len(heads) if names is None else names
    rule = ["---"] * left + ["---:"] * (len(heads) - left)
    return "\n".join(
        [f"| {' | '.join(heads)} |", f"|{'|'.join(rule)}|", *(f"| {' | '.join(row)} |" for row in rows)]
    )
