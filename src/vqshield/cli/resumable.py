"""Commands that write records and may be stopped: one way to show them, sum them up and continue them."""

from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import TypeVar

import typer
from rich.markup import escape

from vqshield.cli.bars import progress_bar
from vqshield.core.errors import InvalidInputError
from vqshield.core.files import write_json
from vqshield.core.serialization import to_plain
from vqshield.runs.study import Progress

Found = TypeVar("Found")


def write_summary(out: Path, summary: object) -> None:
    """summary.json beside the records."""
    write_json(out / "summary.json", to_plain(summary))


def run_to_end(
    run: Callable[[Progress], Found],
    stored: Callable[[], Found],
    out: Path,
    *,
    hidden: bool,
    write: Callable[[Path, Found], object] = write_summary,
) -> Found:
    """Run with a progress bar; after Ctrl-C or SIGTERM, sum up what is finished.

    run: measures, and is given whom to tell. stored: what the folder `out` holds so far. write: how that is
    written there.
    """
    with progress_bar("{task.description}", hidden=hidden) as bar:
        task = bar.add_task("starting", total=None)

        def show(doing: str, done: int, total: int) -> None:
            bar.update(task, description=escape(doing), completed=done, total=total)

        try:
            return run(show)
        except KeyboardInterrupt as stop:
            try:
                write(out, stored())
            except InvalidInputError:  # stopped before the first file was written
                raise KeyboardInterrupt("nothing is finished; run the same command again to start") from stop
            raise KeyboardInterrupt(
                f"what is finished is in {out}; run the same command again to continue"
            ) from stop


def set_aside(out: Path) -> None:
    """Rename a folder to OUT.1, or the next number that is free: nothing that was measured is lost."""
    if not out.exists():
        return
    number = next(each for each in count(1) if not out.with_name(f"{out.name}.{each}").exists())
    out.rename(out.with_name(f"{out.name}.{number}"))
    typer.echo(f"what was in {out} is in {out.name}.{number} now", err=True)
