"""`vqshield harden`: fine-tune a classifier behind the defense that it will be used behind."""

import json
from dataclasses import replace

import typer

from vqshield.classifiers import BUNDLED
from vqshield.cli.derived import Option, PythonOnly, Values, python_only
from vqshield.cli.options import CLASSIFIER, AsJson, command
from vqshield.cli.training_bar import training_bar
from vqshield.core.display_names import NONE, display_defense
from vqshield.core.errors import printable
from vqshield.defenses import list_all_defenses
from vqshield.training import Hardened, RunFiles, list_objectives
from vqshield.training import harden as run_hardening
from vqshield.training.subject import file_stem

DATA = ("cifar10", "cifar100", "mnist", "folder", "imagenet", "npz")


@command(
    run_hardening,
    classifier=replace(CLASSIFIER, default=(BUNDLED, "the bundled classifier tries it")),
    defense=Option(
        help=f"One of {', '.join(list_all_defenses())}, as in swrd:size=3,codes=25, or {NONE}: train without "
        "a defense.",
        default=("swrd", "a classifier's name has no defense"),
    ),
    images=Option("data", help=f"Data set with a training split: {', '.join(DATA)}."),
    method=Option(
        help=f"One of {', '.join(list_objectives())}, as in noise:sigma=0.06 or "
        "adversarial:loss=trades,eps=8/255,steps=7,surrogate=soft (surrogate=none: attacks leave the "
        "defense out); consistency and splitting make samples of the defense agree, for certificates."
    ),
    compile_mode=Option(flag="--compile"),
    test=PythonOnly("belongs to images that are tensors"),
    **python_only("the augmentation that results were measured with", "padding", "label_smoothing"),
)
def harden(values: Values, as_json: AsJson = False) -> None:
    """Fine-tune a classifier behind a defense; writes NAME.safetensors and its card, NAME.json."""
    stem = file_stem(values["name"], values["classifier"], "hardened")
    checkpoint = RunFiles(values["out"], stem).checkpoint
    with training_bar(checkpoint, hidden=as_json) as progress:
        found = values.call(run_hardening, progress=progress)
    typer.echo(json.dumps(found.card, indent=2) if as_json else _summary(found))


def _summary(found: Hardened) -> str:
    shield = found.settings.shield
    behind = f" behind {display_defense(shield)}" if shield else ""
    return (
        f"{found.after:.2%} of {found.test_images} test images right{behind}, {found.before:.2%} before; "
        f"{found.settings.epochs} epochs, {found.seconds:.0f} s\n"
        f"weights {printable(found.weights)}\ncard    {printable(found.card_file)}\n"
        f"load as {printable(found.load)}"
    )
