"""`vqshield download`: a data set from its official home."""

import typer
from rich.progress import DownloadColumn, TaskID

from vqshield.cli.bars import progress_bar
from vqshield.cli.derived import Option, Values
from vqshield.cli.options import command
from vqshield.core.errors import printable
from vqshield.data import download as fetch
from vqshield.data import list_downloadable


@command(
    fetch,
    name=Option(argument=True, help=f"Data set: {', '.join(list_downloadable())}."),
    folder=Option("data_dir"),
)
def download(values: Values) -> None:
    """Fetch a data set, checked by SHA-256; a download that was stopped continues where it ended."""
    tasks: dict[str, TaskID] = {}
    with progress_bar("{task.description}", hidden=False, amount=DownloadColumn()) as bar:

        def show(file: str, done: int, total: int | None) -> None:
            if file not in tasks:
                tasks[file] = bar.add_task(file)
            bar.update(tasks[file], completed=done, total=total)

        place = values.call(fetch, progress=show)
    typer.echo(f"{values['name']} is in {printable(place)}" + ("" if tasks else ", and was there already"))
