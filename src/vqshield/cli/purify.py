"""`vqshield purify`: quantize image files."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from vqshield.core.errors import printable
from vqshield.defenses import as_defense, is_preprocessor
from vqshield.images.files import DEFAULT_MAX_PIXELS
from vqshield.images.purify import Purified
from vqshield.images.purify import purify as purify_files

SOME_FAILED = 1


def purify(
    images: Annotated[
        list[Path],
        typer.Argument(
            help="PNG or JPEG files, or folders. A folder stands for every PNG and JPEG file below it; "
            "hidden and other files are left out, sub-folders are kept.",
            metavar="IMAGE",
        ),
    ],
    out: Annotated[Path, typer.Option(help="Folder for the results, always PNG. Made if it is not there.")],
    defense: Annotated[
        str,
        typer.Option(
            help="A defense of `vqshield list defenses`, with settings as in swrd:size=3,tau=4/255, or "
            "package.module:function."
        ),
    ] = "swrd",
    seed: Annotated[
        int | None,
        typer.Option(
            help="Make the results reproducible: the same seed, picture and name (of the file, or below the "
            "folder given) give the same pixels. Without it the noise is unpredictable, as a defense in use "
            "needs it."
        ),
    ] = None,
    overwrite: Annotated[
        bool,
        typer.Option(
            "--overwrite/--no-overwrite",
            help="Replace earlier results. Without it, those of the same picture and settings are skipped, "
            "and any other file is an error. An input is never replaced.",
        ),
    ] = False,
    max_pixels: Annotated[
        int,
        typer.Option(
            min=1, help="Refuse larger pictures, so that a decompression bomb cannot fill the memory."
        ),
    ] = DEFAULT_MAX_PIXELS,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object instead of sentences.")
    ] = False,
) -> None:
    """Quantize pictures so that a classifier sees them through the shield; exit with 1 if any file failed.

    A run that was stopped continues: results that purified.jsonl in --out lists for the same picture and
    settings are skipped.
    """
    quantizer = as_defense(defense, seed=seed)
    name = defense if is_preprocessor(defense) else defense.partition(":")[0]
    with _progress(hidden=as_json) as bar:
        task = bar.add_task(name, total=None)

        def show(file: Purified, done: int, total: int) -> None:
            if file.error is not None:
                typer.echo(f"error: {file.error}", err=True)
            bar.update(task, completed=done, total=total)

        try:
            results = purify_files(
                images, out, defense=quantizer, overwrite=overwrite, max_pixels=max_pixels, progress=show
            )
        except KeyboardInterrupt as stop:
            raise KeyboardInterrupt(
                f"what is finished is in {printable(out)}; run the same command again to continue"
            ) from stop
    if as_json:
        made_with: dict[str, object] = {"defense": name, "settings": quantizer.settings()}
        made_with["seed"] = quantizer._given_seed
        _print_json(made_with, results)
    else:
        written = sum(result.error is None for result in results)
        earlier = sum(result.skipped for result in results)
        typer.echo(
            f"{written} of {len(results)} pictures quantized with {name} into {printable(out)}"
            + (f", {earlier} of them by an earlier run" if earlier else "")
        )
    if any(result.error is not None for result in results):
        raise typer.Exit(SOME_FAILED)


def _progress(*, hidden: bool) -> Progress:
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=console, transient=True, disable=hidden or not console.is_terminal)


def _print_json(made_with: dict[str, object], results: list[Purified]) -> None:
    files = [
        {
            "input": str(result.input),
            "output": None if result.output is None else str(result.output),
            "width": result.width,
            "height": result.height,
            "seconds": round(result.seconds, 3),
            "error": result.error,
            "skipped": result.skipped,
        }
        for result in results
    ]
    typer.echo(json.dumps({**made_with, "files": files}, indent=2))
