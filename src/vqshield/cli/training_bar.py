"""What the commands that train show: a progress bar, and how to continue an interrupted run."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import typer
from rich.markup import escape

from vqshield.cli.bars import progress_bar
from vqshield.core.errors import printable
from vqshield.core.progress import Progress


@contextmanager
def training_bar(checkpoint: Path, *, hidden: bool) -> Iterator[Progress]:
    """A bar on stderr with epoch, loss, accuracy and the time left; if the run ends early, how to continue.

    checkpoint: the file that the run resumes from.
    """
    with progress_bar("{task.description}", hidden=hidden) as bar:
        task = bar.add_task("train", total=None)

        def show(doing: str, done: int, total: int) -> None:
            if bar.tasks[task].total is None and done and not hidden:  # where the run resumes
                typer.echo(doing, err=True)
            bar.update(task, description=escape(doing), completed=done, total=total)

        try:
            yield show
        except KeyboardInterrupt as stop:
            raise KeyboardInterrupt(_how_to_continue(checkpoint)) from stop
        except OSError:  # a full disk, say: the application tells what it was
            typer.echo(_how_to_continue(checkpoint), err=True)
            raise


def _how_to_continue(checkpoint: Path) -> str:
    if checkpoint.is_file():
        return f"whole epochs are in {printable(checkpoint)}; run the same command to continue"
    return "no epoch was finished, so there is nothing to resume"
