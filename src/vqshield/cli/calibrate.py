"""`vqshield calibrate`: fit a classifier's batch-norm statistics to a defense, without labels."""

import hashlib
import json
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import typer

from vqshield.classifiers import BUNDLED, load_classifier, named_defense, weights_digest
from vqshield.cli.bars import doing_bar
from vqshield.cli.derived import Option, Values
from vqshield.cli.options import CLASSIFIER, DEFENSES, AsJson, command
from vqshield.core.display_names import NONE
from vqshield.core.errors import InvalidInputError, printable
from vqshield.core.files import parse_json
from vqshield.data import SAMPLE_NAME, list_datasets
from vqshield.runs.batch_norm import CALIBRATED, RUNNING
from vqshield.training import Calibrated
from vqshield.training import calibrate as run_calibration
from vqshield.training.calibration import AUTO, GIVEN, PAIRED, REESTIMATE, USUAL_LIMIT


@command(
    run_calibration,
    model=replace(CLASSIFIER, default=(BUNDLED, "the bundled classifier tries it")),
    images=Option(
        "data",
        type=str,
        help=f"Unlabelled images: a folder of image files, or one of {', '.join(list_datasets())}.",
        default=("cifar10", "the data that the bundled classifier was trained on"),
    ),
    defense=Option(
        help=f"One of {DEFENSES}, as in swrd:size=3,codes=25.",
        default=("swrd", "a classifier's name has no defense"),
    ),
    method=Option(
        help=f"{AUTO}, {REESTIMATE}, {PAIRED}, or a blend with the checkpoint, as in {PAIRED}:share=0.5."
    ),
    limit=Option(help=f"Use at most N images, chosen by the seed (default: {USUAL_LIMIT})."),
    out=Option(
        help="Folder for NAME.safetensors and its card NAME.json.",
        default=(Path("runs"), "a command has no use for a classifier that is not written"),
    ),
)
def calibrate(values: Values, as_json: AsJson = False) -> None:
    """Fit batch-norm statistics to a defense, without labels; writes NAME.safetensors and its card."""
    with doing_bar(hidden=as_json) as progress, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the summary says it
        found = values.call(run_calibration, progress=progress)
    assert found.card_file is not None
    card = parse_json(found.card_file.read_bytes(), found.card_file)
    typer.echo(json.dumps(card, indent=2) if as_json else _summary(found, str(card["load"])))


def calibrated_file(
    classifier: str, defense: str, images: str, *, device: str, out: Path, data_dir: Path | None = None
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


def calibrated_spec(classifier: str, defenses: Sequence[str] | None, images: str | None) -> str:
    """The batch-norm statistics of an evaluation with or without --calibrate."""
    if images is None:
        return RUNNING
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
