"""`vqshield export`: a defended classifier as an ONNX file."""

from collections.abc import Mapping
from typing import Annotated

import typer

from vqshield.classifiers import load_classifier, named_defense
from vqshield.cli.derived import Option, PythonOnly, Values
from vqshield.cli.options import DEFENSES, TRY_BUNDLED, command
from vqshield.cli.output import AsJson, show, show_json
from vqshield.core.errors import InvalidInputError, printable
from vqshield.defended import defend
from vqshield_deploy.onnx import export_onnx

SHAPE = "3x32x32"


def _shape(text: str, _: Mapping[str, object]) -> tuple[int, int, int]:
    parts = text.lower().split("x")
    if len(parts) != 3 or not all(part.isascii() and part.isdecimal() and int(part) for part in parts):
        raise InvalidInputError(f"shape={text!r} should be channels x rows x columns, as in {SHAPE}")
    channels, rows, columns = map(int, parts)
    return channels, rows, columns


@command(
    export_onnx,
    path=Option("file", argument=True, metavar="MODEL.onnx", help="The file to write."),
    model=TRY_BUNDLED,
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
            help=f"One of {DEFENSES}, as in swrd:size=3,tau=4/255 (default: the one that the classifier's "
            "file says it was fine-tuned behind, else swrd)."
        ),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a file that is there.")] = False,
    as_json: AsJson = False,
) -> None:
    """Write a defended classifier as an ONNX file.

    The file needs standard operators only; its inputs are images, seed and streams.
    """
    file, classifier = values["path"], values["model"]
    if file.exists() and not overwrite:
        raise InvalidInputError(f"{file} exists; allow overwriting or choose another name")
    model = defend(load_classifier(classifier), defense or named_defense(classifier) or "swrd")
    written = values.call(export_onnx, model=model)
    if as_json:
        show_json(written)
    else:
        size = f"{written.nodes} operators of opset {written.opset}, {written.bytes:,} bytes"
        show(f"{printable(written.path)}: {size}")
