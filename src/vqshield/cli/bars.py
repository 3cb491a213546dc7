"""The progress bar that the longer commands share."""

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)


def progress_bar(
    description: str,
    *,
    hidden: bool,
    amount: ProgressColumn | None = None,
    notes: str = "",
    transient: bool = False,
) -> Progress:
    """A bar on stderr, so that stdout holds results alone, with the time gone and the time left.

    description and notes are formats of rich's task; amount shows how much is done, as a percentage if not
    given; a transient bar goes when the work is done.
    """
    return Progress(
        TextColumn(description),
        BarColumn(),
        amount or TaskProgressColumn(),
        *([TextColumn(notes)] if notes else []),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        disable=hidden,
        transient=transient,
        speed_estimate_period=600,  # the pace of the whole run: single steps are uneven
    )
