"""`vqshield purify`: quantize image files."""

import sys
from pathlib import Path

import typer

from vqshield.cli.bars import progress_bar
from vqshield.cli.derived import Option, Values
from vqshield.cli.options import DEFENSES, command
from vqshield.cli.output import AsJson, show, show_json
from vqshield.cli.resumable import CONTINUE
from vqshield.core import checks
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
    max_pixels=Option(parse=lambda count, _: checks.whole("max_pixels", count, least=1)),
    out=Option(default=(Path("vqshield-purify"), "the folder of a command is named after it")),
)
def purify(values: Values, as_json: AsJson = False) -> None:
    """Quantize image files as a defense does.

    Exits with 1 if any file failed. An interrupted run continues: results that purified.jsonl in --out lists
    for the same picture and settings are skipped.
    """
    defense, out = values["defense"], printable(values["out"])
    quantizer = as_defense(defense, seed=values["seed"])
    name = defense if is_preprocessor(defense) else defense.partition(":")[0]
    with progress_bar(hidden=as_json or not sys.stderr.isatty()) as progress:

        def report(file: Purified, done: int, total: int) -> None:
            if file.error is not None:
                typer.echo(f"error: {file.error}", err=True)
            progress(name, done, total)

        try:
            results = values.call(purify_files, defense=quantizer, seed=None, progress=report)
        except KeyboardInterrupt as stop:
            raise KeyboardInterrupt(f"what is finished is in {out}; {CONTINUE}") from stop
    written = sum(result.error is None for result in results)
    if as_json:
        files = [{**to_plain(result), "seconds": round(result.seconds, 3)} for result in results]
        made_with = {"defense": name, "settings": quantizer.settings(), "seed": quantizer._given_seed}
        show_json({**made_with, "files": files})
    else:
        earlier = sum(result.skipped for result in results)
        skipped = f", {earlier} of them by an earlier run" if earlier else ""
        show(f"{written} of {len(results)} pictures quantized with {name} into {out}{skipped}")
    if written < len(results):
        raise typer.Exit(SOME_FAILED)
