"""Commands that keep records and may be interrupted: one way to run, resume, sum up and show them."""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Annotated, Generic, TypeVar

import typer
from rich.console import Console, RenderableType
from rich.text import Text

from vqshield.cli.bars import doing_bar
from vqshield.cli.derived import Option
from vqshield.core.errors import InvalidInputError
from vqshield.core.files import write_json
from vqshield.core.serialization import to_plain
from vqshield.runs.study import Progress

Summary = TypeVar("Summary")


@dataclass(frozen=True, kw_only=True)
class RecordOptions:
    """What a command does with its folder.

    Attributes:
        out: keep records and summary in this folder; an interrupted run resumes there.
        fresh: set what is in --out aside, and start over.
        summary_only: sum up what is in --out, finished or not, and measure nothing.
        as_json: print JSON instead of tables.
    """

    out: Path
    fresh: Annotated[bool, typer.Option("--fresh")] = False
    summary_only: Annotated[bool, typer.Option("--summary-only")] = False
    as_json: Annotated[bool, typer.Option("--json")] = False


def kept_in(folder: str, text: str | None = None) -> Option:
    """The declaration of --out with a default, which the Python call does not have."""
    return Option(default=(Path(folder), "a command always keeps its records"), help=text)


def write_summary(out: Path, summary: object) -> None:
    """summary.json next to the records."""
    write_json(out / "summary.json", to_plain(summary))


@dataclass(frozen=True, kw_only=True)
class Resumable(Generic[Summary]):
    """What a command that keeps records does with its summary.

    Attributes:
        read: what a folder holds so far.
        tables, notes: what is printed.
        write: writes the summary into a folder.
        files: the last line, where {out} is the folder.
    """

    read: Callable[[Path], Summary]
    tables: Callable[[Summary], Iterable[RenderableType]]
    notes: Callable[[Summary], Iterable[str]]
    write: Callable[[Path, Summary], object] = write_summary
    files: str = "Figures in {out}/summary.json, every image in {out}/records.jsonl"

    def carry_out(self, records: RecordOptions, run: Callable[[Progress], Summary]) -> None:
        """Measure or sum up; write and show the summary."""
        out = records.out
        if records.fresh and not records.summary_only:
            set_aside(out)
        if records.summary_only:
            summary = self.read(out)
        else:
            summary = run_to_end(run, lambda: self.read(out), out, hidden=records.as_json, write=self.write)
        self.write(out, summary)
        if records.as_json:
            typer.echo(json.dumps(to_plain(summary), indent=1))
            return
        console = Console()
        for table in self.tables(summary):
            console.print(table)
        for note in self.notes(summary):
            console.print(Text(note, style="bold red" if note.startswith("WARNING") else ""))
        typer.echo(f"\n{self.files.format(out=out)}")


def run_to_end(
    run: Callable[[Progress], Summary],
    stored: Callable[[], Summary],
    out: Path,
    *,
    hidden: bool,
    write: Callable[[Path, Summary], object] = write_summary,
) -> Summary:
    """Run with a progress bar; after Ctrl-C or SIGTERM, sum up what is finished.

    run: measures, and reports its progress to what it is given. stored: what the folder `out` holds so far.
    write: writes that there.
    """
    with doing_bar(hidden=hidden) as progress:
        try:
            return run(progress)
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
