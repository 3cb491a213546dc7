"""The progress that the longer commands show: a bar on a terminal, a line every half minute in a log."""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

_LOG = logging.getLogger("vqshield")
EVERY = 30.0  # seconds between two lines of a log


class LogProgress(Progress):
    """Progress for whoever reads a log: what is done and left, and how fast, now and then and at the end.

    description, notes: formats of a task, as of progress_bar.
    """

    def __init__(
        self, description: str, notes: str = "", *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(disable=True)  # nothing is drawn
        self._description, self._notes, self._clock = description, notes, clock
        self._began = self._told = clock()

    def update(self, task_id: TaskID, **changes: Any) -> None:
        super().update(task_id, **changes)
        if self._clock() - self._told >= EVERY:
            self._told = self._clock()
            _LOG.info(self._line(self._tasks[task_id]))

    def stop(self) -> None:
        super().stop()
        for task in self.tasks:
            _LOG.info(self._line(task))

    def _line(self, task: Task) -> str:
        seconds = max(self._clock() - self._began, 1e-9)
        words = [self._description.format(task=task).strip() + ":", f"{task.completed:,.0f}"]
        if task.total:
            rate = task.completed / seconds
            left = f"{(task.total - task.completed) / rate:.0f} s" if rate else "unknown"
            words.append(f"of {task.total:,.0f} done ({task.completed / task.total:.0%}), {left} left,")
        else:
            words.append("done")
        return " ".join([*words, f"after {seconds:.0f} s", self._notes.format(task=task)]).strip()


def progress_bar(
    description: str,
    *,
    hidden: bool,
    amount: ProgressColumn | None = None,
    notes: str = "",
    transient: bool = False,
) -> Progress:
    """A bar on stderr, so that stdout holds results alone, with the time gone and the time left; where
    stderr is no terminal, a line every half minute by the logger "vqshield".

    description and notes are formats of rich's task; amount shows how much is done, as a percentage if not
    given; a transient bar goes when the work is done.
    """
    console = Console(stderr=True)
    if not hidden and not console.is_terminal:
        return LogProgress(description, notes)
    return Progress(
        TextColumn(description),
        BarColumn(),
        amount or TaskProgressColumn(),
        *([TextColumn(notes)] if notes else []),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=console,
        disable=hidden,
        transient=transient,
        speed_estimate_period=600,  # the pace of the whole run: single steps are uneven
    )


@contextmanager
def doing_bar(*, hidden: bool) -> Iterator[Callable[[str, int, int], None]]:
    """A bar, as what to call with what is being done, how much of it is done, and how much there is."""
    with progress_bar("{task.description}", hidden=hidden) as bar:
        task = bar.add_task("starting", total=None)
        yield lambda doing, done, total: bar.update(
            task, description=escape(doing), completed=done, total=total
        )
