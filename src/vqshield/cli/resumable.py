"""Commands that write records and may be stopped: one way to show them, sum them up and continue them."""

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from rich.markup import escape

from vqshield.cli.bars import progress_bar
from vqshield.files import write_json
from vqshield.plain import to_plain
from vqshield.runs.study import Progress

Found = TypeVar("Found")


def run_to_end(
    run: Callable[[Progress], Found], stored: Callable[[], Found], out: Path, *, hidden: bool
) -> Found:
    """Run with a progress bar; on Ctrl-C what is finished is summed up.

    run: measures, and is given whom to tell. stored: what the folder `out` holds so far.
    """
    with progress_bar("{task.description}", hidden=hidden) as bar:
        task = bar.add_task("starting", total=None)

        def show(doing: str, done: int, total: int) -> None:
            bar.update(task, description=escape(doing), completed=done, total=total)

        try:
            return run(show)
        except KeyboardInterrupt as stop:
            write_summary(out, stored())
            raise KeyboardInterrupt(
                f"what is finished is in {out}; run the same command again to continue"
            ) from stop


def write_summary(out: Path, summary: object) -> None:
    """summary.json beside the records."""
    write_json(out / "summary.json", to_plain(summary))
