"""`vqshield download`: a data set from its official home."""

from vqshield.cli.bars import progress_bar
from vqshield.cli.derived import Option, Values
from vqshield.cli.options import command
from vqshield.cli.output import AsJson, show, show_json
from vqshield.core.errors import printable
from vqshield.data import download as fetch
from vqshield.data import list_downloadable


@command(
    fetch,
    name=Option(argument=True, help=f"Data set: {', '.join(list_downloadable())}."),
    folder=Option("data_dir"),
)
def download(values: Values, as_json: AsJson = False) -> None:
    """Fetch a data set, checked by SHA-256.

    An interrupted download continues where it stopped.
    """
    files: list[str] = []
    with progress_bar(hidden=as_json) as progress:

        def report(file: str, done: int, total: int | None) -> None:
            files.append(file)
            progress(f"{file}, bytes", done, total or 0)

        folder = values.call(fetch, progress=report)
    if as_json:
        show_json({"name": values["name"], "folder": folder, "fetched": list(dict.fromkeys(files))})
    else:
        already = "" if files else ", and was there already"
        show(f"{values['name']} is in {printable(folder)}{already}")
