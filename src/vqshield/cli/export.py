"""`vqshield export`: a defended classifier as an ONNX file."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any

import typer

from vqshield.classifiers import BUNDLED, load_classifier, named_defense
from vqshield.cli.derived import Option, PythonOnly, Values
from vqshield.cli.options import CLASSIFIER, command
from vqshield.core.errors import InvalidInputError, printable
from vqshield.defended import defend
from vqshield.integrations.onnx import export_onnx

SHAPE = "3x32x32"


def _shape(text: str, _: Mapping[str, Any]) -> tuple[int, int, int]:
    parts = text.lower().split("x")
    if len(parts) != 3 or not all(part.isascii() and part.isdecimal() and int(part) for part in parts):
        raise InvalidInputError(f"shape={text!r} should be channels x rows x columns, as in {SHAPE}")
    channels, rows, columns = map(int, parts)
    return channels, rows, columns


@command(
    export_onnx,
    path=Option("file", argument=True, metavar="MODEL.onnx", help="The file to write."),
    model=replace(CLASSIFIER, type=str, default=(BUNDLED, "the bundled classifier tries it")),
    shape=Option(
        type=str,
        help="Channels, rows and columns of an image; batches may have any size.",
        default=(SHAPE, "fits the bundled classifier"),
        parse=_shape,
    ),
    opset=PythonOnly("the oldest that has all operators suits every runtime"),
)
def export(
    values: Values,
    defense: Annotated[
        str | None,
        typer.Option(
            help="A defense of `vqshield list defenses`, with settings as in swrd:size=3,tau=4/255 (default: "
            "the one that the classifier's file says it was fine-tuned behind, else swrd)."
        ),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite/--no-overwrite", help="Replace a file that is there.")
    ] = False,
) -> None:
    """Write a defended classifier as ONNX in standard operators; its inputs are images, seed and streams."""
    file, classifier = values["path"], values["model"]
    if file.exists() and not overwrite:
        raise InvalidInputError(f"{file} exists; allow overwriting or choose another name")
    model = defend(load_classifier(classifier), defense or named_defense(classifier) or "swrd")
    written = values.call(export_onnx, model=model)
    size = f"{written.nodes} operators of opset {written.opset}, {written.bytes:,} bytes"
    typer.echo(f"{printable(written.path)}: {size}")
