"""`vqshield calibrate`: fit a classifier's batch-norm statistics to a defense, without labels."""

import hashlib
import json
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from vqshield.classifiers import BUNDLED, load_classifier, named_defense, weights_digest
from vqshield.cli.bars import progress_bar
from vqshield.cli.options import DEFENSES, AsJson, Classifier, DataDir, Device
from vqshield.core.display_names import NONE
from vqshield.core.errors import InvalidInputError, printable
from vqshield.core.files import parse_json
from vqshield.data import SAMPLE_NAME, list_datasets
from vqshield.runs.batch_norm import CALIBRATED
from vqshield.training import Calibrated
from vqshield.training import calibrate as run_calibration
from vqshield.training.calibration import AUTO, GIVEN, PAIRED, REESTIMATE, USUAL_LIMIT

CalibrationImages = Annotated[
    str | None,
    typer.Option(
        "--calibrate",
        help="Calibrate the classifier behind each defense (vqshield calibrate) on unlabelled images: a data "
        "set with a training split, NAME or NAME=DIR, or a folder of image files. ladder and leaderboard "
        "show it in addition.",
    ),
]


def calibrate(
    classifier: Classifier = BUNDLED,
    defense: Annotated[str, typer.Option(help=f"One of {DEFENSES}, as in swrd:size=3,codes=25.")] = "swrd",
    data: Annotated[
        str,
        typer.Option(
            help=f"Unlabelled images: a folder of image files, or one of {', '.join(list_datasets())}."
        ),
    ] = "cifar10",
    data_dir: DataDir = None,
    split: Annotated[str, typer.Option(help="Split of the data set: train or test.")] = "train",
    limit: Annotated[
        int | None, typer.Option(help=f"Use at most N images, chosen by the seed (default: {USUAL_LIMIT}).")
    ] = None,
    method: Annotated[
        str,
        typer.Option(
            help=f"{AUTO}, {REESTIMATE}, {PAIRED}, or a blend with the checkpoint, as in {PAIRED}:share=0.5."
        ),
    ] = AUTO,
    samples: Annotated[int, typer.Option(help="Random passes of the defense per image.")] = 1,
    batch: Annotated[int, typer.Option(help="Images per forward pass.")] = 256,
    seed: Annotated[int, typer.Option(help="Decides the images and every draw of the defense.")] = 0,
    device: Device = "auto",
    out: Annotated[Path, typer.Option(help="Folder for weights and card.")] = Path("runs"),
    name: Annotated[
        str | None,
        typer.Option(help="Stem of the files (default: the classifier's name and -calibrated)."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Fit batch-norm statistics to a defense, without labels; writes NAME.safetensors and its card."""
    with progress_bar("{task.description}", hidden=as_json) as bar, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the summary says it
        task = bar.add_task("calibrate", total=None)

        def show(doing: str, done: int, total: int) -> None:
            bar.update(task, description=escape(doing), completed=done, total=total)

        found = run_calibration(
            classifier, data, defense=defense, method=method, samples=samples, batch=batch, seed=seed,
            split=split, limit=limit, data_dir=data_dir, device=device, out=out, name=name, progress=show,
        )  # fmt: skip
    assert found.card_file is not None
    card = parse_json(found.card_file.read_bytes(), found.card_file)
    typer.echo(json.dumps(card, indent=2) if as_json else _summary(found, str(card["load"])))


def calibrated_file(
    classifier: str, defense: str, images: str, *, data_dir: Path | None, device: str, out: Path
) -> Path:
    """The weights of a calibrated classifier in a folder, made where they are not there yet. Their name
    follows from the classifier's weights, the defense and the images.

    images: as of --calibrate; data_dir: of the images that are evaluated, for a data set without =DIR.
    """
    given = f"{weights_digest(load_classifier(classifier))} {defense} {images} {data_dir}"
    name = f"calibrated-{hashlib.sha256(given.encode()).hexdigest()[:12]}"
    path = out / f"{name}.safetensors"
    if path.is_file():
        return path
    data, equals, folder = images.partition("=")
    split = "test" if data == SAMPLE_NAME else "train"
    run_calibration(
        classifier, data if data in list_datasets() else images, defense=defense, split=split,
        data_dir=folder if equals else data_dir, device=device, out=out, name=name,
    )  # fmt: skip
    return path


def calibrated_spec(classifier: str, defenses: Sequence[str] | None, images: str) -> str:
    """The batch-norm statistics of an evaluation with --calibrate."""
    if {*(defenses or [named_defense(classifier) or NONE])} == {NONE}:
        raise InvalidInputError("--calibrate given without a defense; give --defense")
    data, _, folder = images.partition("=")
    if data not in list_datasets():
        data, folder = "folder", images
    split = ",split=test" if data == SAMPLE_NAME else ""
    return f"{CALIBRATED}:data={data}{split}" + (f",data_dir={folder}" if folder else "")


def _summary(found: Calibrated, load: str) -> str:
    facts = found.calibration
    agreement = facts.agreement
    lines = [f"{facts.method}, {facts.images} images"]
    if agreement:
        lines[0] += (
            f"; same class as the bare classifier on held-back images: {agreement[facts.method]:.1%}, "
            f"{agreement[GIVEN]:.1%} before"
        )
    if facts.method == GIVEN:
        lines.append("no candidate agrees better: the classifier is kept unchanged")
    lines += [f"weights {printable(found.weights)}", f"card    {printable(found.card_file)}"]
    return "\n".join([*lines, f"load as {printable(load)}"])
