"""Work that writes records and may be stopped: one way to show it, to sum it up and to say how to go on."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from vqshield.cli.bars import progress_bar
from vqshield.files import write_json
from vqshield.runs.study import Report

Summarise = Callable[[Path], dict[str, Any]]


class Resumable(Protocol):
    """Says how much there is to do, and does what is not done yet."""

    @property
    def work(self) -> int:
        """What a progress bar counts."""
        ...

    def run(self) -> None:
        """Begin, or go on."""
        ...


def run_to_end(make: Callable[[Report], Resumable], out: Path, summarise: Summarise, *, hidden: bool) -> None:
    """Run with a progress bar; on Ctrl-C what is finished is summed up."""
    with progress_bar("{task.description}", hidden=hidden) as bar:
        task = bar.add_task("starting", total=None)
        doing = make(lambda name, done: bar.update(task, description=name, completed=done))
        bar.update(task, total=doing.work)
        try:
            doing.run()
        except KeyboardInterrupt as stop:
            write_summary(out, summarise)
            raise KeyboardInterrupt(
                f"what is finished is in {out}; run the same command again to go on"
            ) from stop


def write_summary(out: Path, summarise: Summarise) -> dict[str, Any]:
    """summary.json of the records in a folder, finished or not."""
    summary = summarise(out)
    write_json(out / "summary.json", summary)
    return summary
