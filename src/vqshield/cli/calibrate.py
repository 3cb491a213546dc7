"""`vqshield calibrate`: fit a classifier's batch-norm statistics to a defense, without labels."""

import hashlib
import warnings
from collections.abc import Sequence
from pathlib import Path

from vqshield.classifiers import load_classifier, named_defense, weights_digest
from vqshield.cli.bars import progress_bar
from vqshield.cli.derived import Option, Values
from vqshield.cli.options import DEFENSES, TRY_BUNDLED, command
from vqshield.cli.output import AsJson, show, show_json
from vqshield.cli.unused import Unused
from vqshield.core.display_names import NONE
from vqshield.core.errors import InvalidInputError, printable
from vqshield.core.files import parse_json
from vqshield.data import SAMPLE_NAME, list_datasets
from vqshield.runs.batch_norm import CALIBRATED, RUNNING
from vqshield.training.calibration import AUTO, GIVEN, PAIRED, REESTIMATE, USUAL_LIMIT
from vqshield.training.calibration import calibrate as run_calibration

UNUSED = (
    Unused("with a folder as --data", lambda typed: typed["data"] not in list_datasets(), "data_dir split"),
)


@command(
    run_calibration,
    model=TRY_BUNDLED,
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
        default=(Path("vqshield-calibrate"), "a command has no use for a classifier that is not written"),
    ),
)
def calibrate(values: Values, as_json: AsJson = False) -> None:
    """Fit batch-norm statistics to a defense, without labels.

    Writes NAME.safetensors and its card, NAME.json.
    """
    with progress_bar(hidden=as_json) as progress, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the summary says it
        calibrated = values.call(run_calibration, progress=progress)
    assert calibrated.card_file is not None
    assert calibrated.weights is not None
    card = parse_json(calibrated.card_file.read_bytes(), calibrated.card_file)
    if as_json:
        show_json(card)
        return
    facts = calibrated.calibration
    done = f"{facts.method}, {facts.images} images"
    if facts.agreement:
        done += (
            f"; same class as the bare classifier on held-back images: {facts.agreement[facts.method]:.1%}, "
            f"{facts.agreement[GIVEN]:.1%} before"
        )
    unchanged = ["no candidate agrees better: the classifier is kept unchanged"]
    show(
        done,
        *(unchanged if facts.method == GIVEN else []),
        f"weights {printable(calibrated.weights)}",
        f"card    {printable(calibrated.card_file)}",
        f"load as {printable(str(card['load']).removesuffix(calibrated.weights.name))}"
        f"{printable(calibrated.weights)}",
    )


def calibrated_file(
    classifier: str, defense: str, images: str, *, device: str, out: Path, data_dir: Path | None = None
) -> Path:
    """The weights of a calibrated classifier in a folder, made where they are not there yet.

    Their name follows from the classifier's weights, the defense and the images. images: as of --calibrate;
    data_dir: of the images that are evaluated, for a data set without =DIR.
    """
    source = f"{weights_digest(load_classifier(classifier))} {defense} {images} {data_dir}"
    name = f"calibrated-{hashlib.sha256(source.encode()).hexdigest()[:12]}"
    path = out / f"{name}.safetensors"
    if path.is_file():
        return path
    data, equals, folder = images.partition("=")
    run_calibration(
        classifier, data if data in list_datasets() else images, defense=defense,
        split="test" if data == SAMPLE_NAME else "train", data_dir=folder if equals else data_dir,
        device=device, out=out, name=name,
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
