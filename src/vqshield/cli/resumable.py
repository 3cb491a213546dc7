"""Commands that keep records and may be interrupted: one way to run, resume, sum up and show them."""

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TypeVar

import typer
from rich.console import RenderableType

from vqshield.cli.bars import progress_bar
from vqshield.cli.derived import Option
from vqshield.cli.output import AsJson, show, show_json
from vqshield.core.errors import InvalidInputError
from vqshield.core.files import write_json
from vqshield.core.progress import Progress
from vqshield.core.serialization import to_plain

Summary = TypeVar("Summary")
CONTINUE = "run the same command again to continue"


@dataclass(frozen=True, kw_only=True)
class RecordOptions:
    """What a command does with its folder.

    Attributes:
        out: keep records and summary in this folder; an interrupted run resumes there.
        fresh: move the earlier run in --out aside, and start over.
        render_only: print and write the results of --out again, finished or not, without measuring.
    """

    out: Path
    fresh: bool = False
    render_only: bool = False
    as_json: AsJson = False


def kept_in(verb: str, text: str | None = None) -> Option:
    """The declaration of --out with a default, which the Python call does not have."""
    return Option(default=(Path(f"vqshield-{verb}"), "a command always keeps its records"), help=text)


def write_summary(out: Path, summary: object) -> None:
    """summary.json next to the records."""
    write_json(out / "summary.json", to_plain(summary))


def carry_out(
    records: RecordOptions,
    run: Callable[[Progress], Summary],
    *,
    read: Callable[[Path], Summary],
    tables: Callable[[Summary], Iterable[RenderableType]],
    notes: Callable[[Summary], Iterable[str]],
    write: Callable[[Path, Summary], object] = write_summary,
    files: str = "Results in {out}/summary.json, every image in {out}/records.jsonl",
    plain: Callable[[Summary], object] = to_plain,
) -> Summary:
    """Measure or only read a folder; write and show the summary.

    read: makes the summary of what a folder holds. write: writes it there. tables, notes, files: what is
    shown, in this order; plain: what --json shows.
    """
    out = records.out
    if records.fresh and not records.render_only:
        set_aside(out)
    if records.render_only:
        summary = read(out)
    else:
        summary = run_to_end(run, lambda: read(out), out, hidden=records.as_json, write=write)
    write(out, summary)
    if records.as_json:
        show_json(plain(summary))
    else:
        show(*tables(summary), *notes(summary), "", files.format(out=out))
    return summary


def run_to_end(
    run: Callable[[Progress], Summary],
    stored: Callable[[], Summary],
    out: Path,
    *,
    hidden: bool,
    write: Callable[[Path, Summary], object] = write_summary,
) -> Summary:
    """Run with a progress bar; after Ctrl-C or SIGTERM, write a summary of what `stored` has so far."""
    with progress_bar(hidden=hidden) as progress:
        try:
            return run(progress)
        except KeyboardInterrupt as stop:
            with suppress(InvalidInputError):  # stopped before there was a result
                write(out, stored())
            if out.is_dir() and any(out.iterdir()):
                raise KeyboardInterrupt(f"what is finished is in {out}; {CONTINUE}") from stop
            raise KeyboardInterrupt("nothing is finished; run the same command again to start") from stop


def set_aside(out: Path) -> None:
    """Rename a folder to OUT.1, or the next number that is free: nothing that was measured is lost."""
    if not out.exists():
        return
    number = next(each for each in count(1) if not out.with_name(f"{out.name}.{each}").exists())
    out.rename(out.with_name(f"{out.name}.{number}"))
    typer.echo(f"what was in {out} is in {out.name}.{number} now", err=True)
