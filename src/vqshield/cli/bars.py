"""The progress of the longer commands: a bar on a terminal, a line every half minute in a log."""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn
from rich.table import Column
from rich.text import Text

from vqshield.core.errors import printable
from vqshield.core.progress import Progress as Report

EVERY = 30.0
"""Seconds between two lines of a log."""
_LOG = logging.getLogger("vqshield")


class LogLines:
    """Progress for the reader of a log."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._line = clock, ""
        self._began = self._logged = clock()
        self._before: int | None = None

    def report(self, doing: str, done: int, total: int) -> None:
        """Log a line if the last one is old enough."""
        now, self._before = self._clock(), done if self._before is None else self._before
        self._line = f"{doing}: {state(done, total, now - self._began, self._before)}"
        if now - self._logged >= EVERY:
            self._logged = now
            _LOG.info(self._line)

    def close(self) -> None:
        if self._line:
            _LOG.info(self._line)


class _State(ProgressColumn):
    def render(self, task: Task) -> Text:
        before = task.fields.get("before") or 0
        return Text(state(task.completed, task.total, task.elapsed or 0.0, before), no_wrap=True)


def state(done: float, total: float | None, seconds: float, before: float = 0) -> str:
    """How far work is, as in "60 % · 11:04 elapsed · 11:40 left"; before: what an earlier run had done."""
    if not total:
        return f"{done:,.0f} done · {_clock(seconds)} elapsed"
    left = _clock(seconds * (total - done) / (done - before)) if done > before else "-:--"
    return f"{100 * done / total:.0f} % · {_clock(seconds)} elapsed · {left} left"


@contextmanager
def progress_bar(*, hidden: bool) -> Iterator[Report]:
    """A bar on stderr, so that stdout holds results alone; log lines where stderr is not a terminal."""
    console = Console(stderr=True)
    if not hidden and not console.is_terminal:
        lines = LogLines()
        try:
            yield lines.report
        finally:
            lines.close()
        return
    # A long label is cut, so that the times are always seen.
    label = TextColumn("{task.description}", table_column=Column(ratio=1, no_wrap=True, overflow="ellipsis"))
    columns = label, BarColumn(bar_width=16), _State()
    with Progress(*columns, console=console, expand=True, disable=hidden) as bars:
        task, before = bars.add_task("starting", total=None), -1

        def report(doing: str, done: int, total: int) -> None:
            nonlocal before
            before = done if before < 0 else before
            bars.update(task, description=escape(doing), completed=done, total=total or None, before=before)

        yield report


@contextmanager
def training_bar(checkpoint: Path, *, hidden: bool) -> Iterator[Report]:
    """The progress of training; says where a run resumes, and how to continue one that ends early.

    checkpoint: the file that the run resumes from.
    """
    with progress_bar(hidden=hidden) as report:
        started = hidden

        def show(doing: str, done: int, total: int) -> None:
            nonlocal started
            if done and not started:
                typer.echo(doing, err=True)
            started = True
            report(doing, done, total)

        try:
            yield show
        except KeyboardInterrupt as stop:
            raise KeyboardInterrupt(_how_to_continue(checkpoint)) from stop
        except OSError:  # such as a full disk, which the application reports
            typer.echo(_how_to_continue(checkpoint), err=True)
            raise


def _how_to_continue(checkpoint: Path) -> str:
    if checkpoint.is_file():
        return f"whole epochs are in {printable(checkpoint)}; run the same command to continue"
    return "no epoch was finished, so there is nothing to resume"


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}" if minutes >= 60 else f"{minutes}:{rest:02}"
