"""`vqshield harden`: fine-tune a classifier behind the defense that it will be used behind."""

import json
from pathlib import Path
from typing import Annotated

import typer

from vqshield.classifiers import BUNDLED
from vqshield.cli.options import AsJson, Classifier, DataDir, Device
from vqshield.cli.training_bar import how_to_continue, training_bar
from vqshield.core.display_names import NONE, display_defense
from vqshield.core.errors import printable
from vqshield.defenses import list_all_defenses
from vqshield.training import Hardened, HardenSettings, checkpoint_path, list_objectives
from vqshield.training import harden as run_hardening
from vqshield.training.saving import file_stem
from vqshield.training.settings import CompileMode, Precision

DATA = ("cifar10", "cifar100", "mnist", "folder", "imagenet", "npz")
DEFAULT = HardenSettings


def harden(
    classifier: Classifier = BUNDLED,
    defense: Annotated[
        str,
        typer.Option(
            help=f"One of {', '.join(list_all_defenses())}, as in swrd:size=3,codes=25, or {NONE}: train "
            "without a defense."
        ),
    ] = "swrd",
    method: Annotated[
        str,
        typer.Option(
            help=f"One of {', '.join(list_objectives())}, as in noise:sigma=0.06 or "
            "adversarial:loss=trades,eps=8/255,steps=7,surrogate=soft (surrogate=none: attacks leave the "
            "defense out); consistency and splitting make draws of the defense agree, for certificates."
        ),
    ] = "natural",
    data: Annotated[
        str, typer.Option(help=f"Data set with a training split: {', '.join(DATA)}.")
    ] = "cifar10",
    data_dir: DataDir = None,
    limit: Annotated[int | None, typer.Option(help="Only the first training images, this many.")] = None,
    test_limit: Annotated[int | None, typer.Option(help="Only the first test images, this many.")] = None,
    epochs: Annotated[int, typer.Option(help="Passes over the training images.")] = DEFAULT.epochs,
    batch: Annotated[int, typer.Option(help="Images a step.")] = DEFAULT.batch,
    lr: Annotated[
        float, typer.Option(help="Highest learning rate of the one-cycle schedule.")
    ] = DEFAULT.peak_lr,
    ema: Annotated[float, typer.Option(help="Decay of the averaged weights; 0: no averaging.")] = DEFAULT.ema,
    cutout: Annotated[int, typer.Option(help="Side of the square painted over, in pixels; 0: none.")] = 0,
    seed: Annotated[int, typer.Option(help="Decides order, augmentation and every draw.")] = 0,
    device: Device = "auto",
    precision: Annotated[
        Precision | None, typer.Option(help="Precision of training; without it, bf16 on a GPU.")
    ] = None,
    compile_mode: Annotated[
        CompileMode, typer.Option("--compile", help="How torch.compile is used.")
    ] = "off",
    out: Annotated[Path, typer.Option(help="Folder for weights, card and checkpoint.")] = Path("runs"),
    name: Annotated[
        str | None,
        typer.Option(help="Stem of the files written; without it, the classifier's name and -hardened."),
    ] = None,
    resume: Annotated[
        bool,
        typer.Option("--resume/--no-resume", help="Continue from the checkpoint in --out, if there is one."),
    ] = True,
    as_json: AsJson = False,
) -> None:
    """Fine-tune a classifier behind a defense; writes NAME.safetensors and its card, NAME.json."""
    checkpoint = checkpoint_path(file_stem(name, classifier, "hardened"), out)
    try:
        with training_bar(hidden=as_json) as progress:
            found = run_hardening(
                classifier, defense, data, method=method, data_dir=data_dir, limit=limit,
                test_limit=test_limit, epochs=epochs, batch=batch, lr=lr, ema=ema, cutout=cutout, seed=seed,
                precision=precision, compile_mode=compile_mode, out=out, name=name, device=device,
                resume=resume, progress=progress,
            )  # fmt: skip
    except KeyboardInterrupt as stop:
        raise KeyboardInterrupt(how_to_continue(checkpoint)) from stop
    except OSError:  # a full disk, say: the application tells what it was
        typer.echo(how_to_continue(checkpoint), err=True)
        raise
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
