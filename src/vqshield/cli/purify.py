"""`vqshield purify`: quantize image files."""

import json
import sys
from pathlib import Path

import typer
from rich.progress import MofNCompleteColumn

from vqshield.cli.bars import progress_bar
from vqshield.cli.derived import Option, Values
from vqshield.cli.options import DEFENSES, AsJson, command
from vqshield.core.errors import printable
from vqshield.core.serialization import to_plain
from vqshield.defenses import as_defense, is_preprocessor
from vqshield.images.purify import Purified
from vqshield.images.purify import purify as purify_files

SOME_FAILED = 1


@command(
    purify_files,
    paths=Option("images", type=list[Path], argument=True, metavar="IMAGE"),
    defense=Option(type=str, help=f"One of {DEFENSES}, as in swrd:size=3,tau=4/255."),
    max_pixels=Option(least=1),
)
def purify(values: Values, as_json: AsJson = False) -> None:
    """Quantize pictures so that a classifier sees them through the defense; exit with 1 if any file failed.

    An interrupted run continues: results that purified.jsonl in --out lists for the same picture and settings
    are skipped.
    """
    defense, out = values["defense"], printable(values["out"])
    quantizer = as_defense(defense, seed=values["seed"])
    name = defense if is_preprocessor(defense) else defense.partition(":")[0]
    with progress_bar(
        name, hidden=as_json or not sys.stderr.isatty(), amount=MofNCompleteColumn(), transient=True
    ) as bar:
        task = bar.add_task(name, total=None)

        def show(file: Purified, done: int, total: int) -> None:
            if file.error is not None:
                typer.echo(f"error: {file.error}", err=True)
            bar.update(task, completed=done, total=total)

        try:
            results = values.call(purify_files, defense=quantizer, seed=None, progress=show)
        except KeyboardInterrupt as stop:
            raise KeyboardInterrupt(
                f"what is finished is in {out}; run the same command again to continue"
            ) from stop
    if as_json:
        files = [{**to_plain(each), "seconds": round(each.seconds, 3)} for each in results]
        made_with = {"defense": name, "settings": quantizer.settings(), "seed": quantizer._given_seed}
        typer.echo(json.dumps({**made_with, "files": files}, indent=2))
    else:
        written = sum(result.error is None for result in results)
        earlier = sum(result.skipped for result in results)
        typer.echo(
            f"{written} of {len(results)} pictures quantized with {name} into {out}"
            + (f", {earlier} of them by an earlier run" if earlier else "")
        )
    if any(result.error is not None for result in results):
        raise typer.Exit(SOME_FAILED)
