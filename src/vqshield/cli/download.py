"""`vqshield download`: a data set from its official home."""

from pathlib import Path
from typing import Annotated

import typer
from rich.progress import DownloadColumn, TaskID

from vqshield.cli.bars import progress_bar
from vqshield.core.errors import printable
from vqshield.data import download as fetch
from vqshield.data import list_downloadable


def download(
    name: Annotated[str, typer.Argument(help=f"Data set: {', '.join(list_downloadable())}.")],
    data_dir: Annotated[
        Path | None,
        typer.Option(help="Where it goes; without it, the cache folder (VQSHIELD_CACHE, if set)."),
    ] = None,
) -> None:
    """Fetch a data set, checked by SHA-256; a download that was stopped continues where it ended."""
    tasks: dict[str, TaskID] = {}
    with progress_bar("{task.description}", hidden=False, amount=DownloadColumn()) as bar:

        def show(file: str, done: int, total: int | None) -> None:
            if file not in tasks:
                tasks[file] = bar.add_task(file)
            bar.update(tasks[file], completed=done, total=total)

        place = fetch(name, data_dir, progress=show)
    typer.echo(f"{name} is in {printable(place)}" + ("" if tasks else ", and was there already"))
