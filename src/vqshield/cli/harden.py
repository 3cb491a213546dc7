"""`vqshield harden`: fine-tune a classifier behind the defense that it will be used behind."""

from vqshield.cli.bars import training_bar
from vqshield.cli.derived import Option, PythonOnly, Values
from vqshield.cli.options import TRY_BUNDLED, command
from vqshield.cli.output import AsJson, show, show_json
from vqshield.core.display_names import NONE, display_defense
from vqshield.core.errors import printable
from vqshield.defenses import list_all_defenses
from vqshield.training.hardening import harden as run_hardening
from vqshield.training.objectives import list_objectives
from vqshield.training.run import RunFiles
from vqshield.training.subject import file_stem

DATA = ("cifar10", "cifar100", "mnist", "folder", "imagenet", "npz")
FIXED = PythonOnly("the augmentation that results were measured with")


@command(
    run_hardening,
    classifier=TRY_BUNDLED,
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
    compile_mode=Option("compile"),
    test=PythonOnly("belongs to images that are tensors"),
    padding=FIXED,
    label_smoothing=FIXED,
)
def harden(values: Values, as_json: AsJson = False) -> None:
    """Fine-tune a classifier behind a defense.

    Writes NAME.safetensors and its card, NAME.json.
    """
    stem = file_stem(values["name"], values["classifier"], "hardened")
    with training_bar(RunFiles(values["out"], stem).checkpoint, hidden=as_json) as progress:
        hardened = values.call(run_hardening, progress=progress)
    if as_json:
        show_json(hardened.card)
        return
    shield = hardened.settings.shield
    behind = f" behind {display_defense(shield)}" if shield else ""
    show(
        f"{hardened.after:.2%} of {hardened.test_images} test images right{behind}, {hardened.before:.2%} "
        f"before; {hardened.settings.epochs} epochs, {hardened.seconds:.0f} s",
        f"weights {printable(hardened.weights)}",
        f"card    {printable(hardened.card_file)}",
        f"load as {printable(hardened.load)}",
    )
