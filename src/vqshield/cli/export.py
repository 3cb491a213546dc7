"""`vqshield export`: a shielded classifier as an ONNX file."""

from pathlib import Path
from typing import Annotated

import typer

from vqshield.classifiers import BUNDLED, load_classifier, named_defense
from vqshield.cli.options import Classifier
from vqshield.core.errors import InvalidInputError, printable
from vqshield.defended import defend

SHAPE = "3x32x32"


def export(
    file: Annotated[Path, typer.Argument(help="The file to write.", metavar="MODEL.onnx")],
    defense: Annotated[
        str | None,
        typer.Option(
            help="A defense of `vqshield list defenses`, with settings as in swrd:size=3,tau=4/255. Without "
            "it, the one that the classifier's file says it was fine-tuned behind, else swrd."
        ),
    ] = None,
    classifier: Classifier = BUNDLED,
    shape: Annotated[
        str, typer.Option(help="Channels, rows and columns of an image; batches may have any size.")
    ] = SHAPE,
    overwrite: Annotated[
        bool, typer.Option("--overwrite/--no-overwrite", help="Replace a file that is there.")
    ] = False,
) -> None:
    """Write a shielded classifier as ONNX in standard operators; its inputs are images, seed and streams."""
    from vqshield.integrations.onnx import export_onnx  # needs onnx

    if file.exists() and not overwrite:
        raise InvalidInputError(f"{file} exists; allow overwriting or choose another name")
    model = defend(load_classifier(classifier), defense or named_defense(classifier) or "swrd")
    written = export_onnx(model, file, shape=_shape(shape))
    size = f"{written.nodes} operators of opset {written.opset}, {written.bytes:,} bytes"
    typer.echo(f"{printable(written.path)}: {size}")


def _shape(text: str) -> tuple[int, int, int]:
    parts = text.lower().split("x")
    if len(parts) != 3 or not all(part.isascii() and part.isdecimal() and int(part) for part in parts):
        raise InvalidInputError(f"shape={text!r} should be channels x rows x columns, as in {SHAPE}")
    channels, rows, columns = map(int, parts)
    return channels, rows, columns
