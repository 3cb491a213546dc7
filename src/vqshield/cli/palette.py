"""`vqshield palette`: indexed PNG files of a few colours."""

from pathlib import Path
from typing import Annotated

import typer

from vqshield.cli.purify import SOME_FAILED
from vqshield.core.errors import printable
from vqshield.images.files import DEFAULT_MAX_PIXELS
from vqshield.images.purify import Purified
from vqshield.palette_files import index_files


def palette(
    images: Annotated[
        list[Path],
        typer.Argument(
            help="PNG or JPEG files, or folders. A folder stands for every PNG and JPEG file below it.",
            metavar="IMAGE",
        ),
    ],
    out: Annotated[Path, typer.Option(help="Folder for the results, always PNG. Made if it is not there.")],
    colors: Annotated[int, typer.Option(min=1, max=256, help="How many colours a picture keeps.")] = 16,
    dither: Annotated[
        bool,
        typer.Option("--dither/--no-dither", help="Show smooth shades by Floyd–Steinberg dithering."),
    ] = False,
    seed: Annotated[int, typer.Option(min=0, help="Decides where the search for the colours starts.")] = 0,
    overwrite: Annotated[
        bool,
        typer.Option(
            "--overwrite/--no-overwrite", help="Replace earlier results. An input is never replaced."
        ),
    ] = False,
    max_pixels: Annotated[
        int,
        typer.Option(
            min=1, help="Refuse larger pictures, so that a decompression bomb cannot fill the memory."
        ),
    ] = DEFAULT_MAX_PIXELS,
) -> None:
    """Reduce pictures to a few colours each, as indexed PNG files; exit with 1 if any file failed."""

    def show(file: Purified, done: int, total: int) -> None:
        if file.error is not None:
            typer.echo(f"error: {file.error}", err=True)

    results = index_files(
        images, out, colours=colors, dither=dither, seed=seed, overwrite=overwrite, max_pixels=max_pixels,
        progress=show,
    )  # fmt: skip
    written = [result for result in results if result.error is None]
    typer.echo(
        f"{len(written)} of {len(results)} pictures with at most {colors} colours into {printable(out)}"
    )
    if len(written) < len(results):
        raise typer.Exit(SOME_FAILED)
