"""`vqshield train`: train a classifier, with checkpoints to resume from."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vqshield.classifiers import list_classifiers
from vqshield.cli.bars import training_bar
from vqshield.cli.derived import Option, PythonOnly, Values, derived
from vqshield.cli.output import AsJson, show, show_json
from vqshield.cli.unused import Unused, option_is
from vqshield.core.errors import InvalidInputError, printable
from vqshield.core.settings import parse_spec
from vqshield.defenses import list_all_defenses
from vqshield.training.run import RunFiles
from vqshield.training.settings import TRAINABLE
from vqshield_paper.training import Recipe
from vqshield_paper.training import train as run_training

UNUSED = (
    Unused("with --optimizer adam", option_is("optimizer", "adam"), "momentum nesterov"),
    Unused("with --momentum 0", option_is("momentum", 0), "nesterov"),
    Unused("without --schedule step", lambda typed: typed["schedule"] != "step", "milestones drop"),
    Unused("with --padding 0", option_is("padding", 0), "border"),
    Unused("with --weight-decay 0", option_is("weight_decay", 0), "decay"),
)


def _whole_numbers(text: str, _: Mapping[str, Any]) -> tuple[int, ...]:
    try:
        return tuple(int(each) for each in text.split(",") if text)
    except ValueError as error:
        raise InvalidInputError(f"milestones={text!r} should be whole numbers, as in 60,120,160") from error


@derived(
    run_training,
    Recipe,
    recipe=PythonOnly("made from the options of its fields"),
    folder=Option("data_dir"),
    data=Option(
        help=f"Data set: {', '.join(TRAINABLE)}.", default=("cifar10", "the data set of most experiments")
    ),
    arch=Option(
        help=f"Network: {', '.join(list_classifiers())}, with its settings behind it: "
        "resnet18:stem=imagenet, wrn28_10:dropout=0.3.",
        default=("small", "the smallest network trains anywhere"),
    ),
    peak_lr=Option("lr"),
    milestones=Option(
        type=str,
        help="Epochs after which schedule step drops the rate, as in 60,120,160.",
        default=("", "one option holds all of them"),
        parse=_whole_numbers,
    ),
    shield=Option(
        "defense",
        help=f"Train and test behind one of {', '.join(list_all_defenses())}, as in "
        "swrd:noise=image,sigma=0.1 (default: none).",
    ),
    start=Option(type=Path),
    device=Option(
        help="cpu, cuda, or auto: the GPU where there is one.", default=("auto", "a GPU is faster")
    ),
    compile_mode=Option("compile"),
    out=Option(default=(Path("vqshield-train"), "the folder of a command is named after it")),
    options=PythonOnly("typed after the network's name"),
    method=PythonOnly("vqshield harden has it"),
    progress=PythonOnly("commands show a progress bar"),
)
def train(values: Values, as_json: AsJson = False) -> None:
    """Train a classifier from scratch.

    Writes ARCH-DATA.safetensors and its card, ARCH-DATA.json.
    """
    network, options = parse_spec(values["arch"])
    recipe = values.call(Recipe, arch=network, options=options)
    with training_bar(RunFiles(values["out"], recipe.name).checkpoint, hidden=as_json) as progress:
        result = values.call(run_training, recipe=recipe, progress=progress)
    if as_json:
        show_json(result.card)
        return
    behind = f" behind {recipe.shield}" if recipe.shield else ""
    show(
        f"{result.test_accuracy:.2%} of {result.test_images} test images right{behind} after "
        f"{recipe.epochs} epochs, {result.seconds:.0f} s",
        f"weights {printable(result.weights)}",
        f"card    {printable(result.card_file)}",
    )
