"""`vqshield train`: train a classifier, with checkpoints to resume from."""

import json
from pathlib import Path
from typing import Annotated

import typer

from vqshield.classifiers import list_classifiers
from vqshield.cli.training_bar import how_to_continue, training_bar
from vqshield.cli.unused import Unused, option_is
from vqshield.core.errors import InvalidInputError, printable
from vqshield.core.settings import parse_spec
from vqshield.defenses import list_all_defenses
from vqshield.training import TrainResult, checkpoint_path, trainable
from vqshield.training.settings import CompileMode, Precision
from vqshield_paper.training import Recipe
from vqshield_paper.training import train as run_training
from vqshield_paper.training.recipe import Border, Decay, Optimizer, Schedule

UNUSED = {
    "train": (
        Unused("with --optimizer adam", option_is("optimizer", "adam"), "momentum nesterov"),
        Unused("with --momentum 0", option_is("momentum", 0), "nesterov"),
        Unused("without --schedule step", lambda given: given["schedule"] != "step", "milestones drop"),
        Unused("with --padding 0", option_is("padding", 0), "border"),
        Unused("with --weight-decay 0", option_is("weight_decay", 0), "decay"),
    ),
}


def train(
    data_dir: Annotated[Path, typer.Option(help="Folder with the data set's official binary files.")],
    data: Annotated[str, typer.Option(help=f"Data set: {', '.join(trainable())}.")] = "cifar10",
    arch: Annotated[
        str,
        typer.Option(
            help=f"Network: {', '.join(list_classifiers())}, with its settings behind it: "
            "resnet18:stem=imagenet, wrn28_10:dropout=0.3."
        ),
    ] = "small",
    epochs: Annotated[int, typer.Option(help="Passes over the training images.")] = 30,
    batch: Annotated[int, typer.Option(help="Images a step.")] = 512,
    lr: Annotated[float, typer.Option(help="Highest learning rate.")] = 0.4,
    optimizer: Annotated[Optimizer, typer.Option(help="Optimizer.")] = "sgd",
    momentum: Annotated[float, typer.Option(help="Of sgd.")] = 0.9,
    nesterov: Annotated[bool, typer.Option(help="Nesterov's momentum.")] = True,
    schedule: Annotated[Schedule, typer.Option(help="How the rate goes.")] = "one-cycle",
    milestones: Annotated[
        str, typer.Option(help="Epochs after which schedule step drops the rate, as in 60,120,160.")
    ] = "",
    drop: Annotated[float, typer.Option(help="What the rate is multiplied by there.")] = 0.1,
    weight_decay: Annotated[float, typer.Option(help="Weight decay.")] = 5e-4,
    decay: Annotated[
        Decay, typer.Option(help="What decays: weights alone, or norms and biases too.")
    ] = "weights",
    label_smoothing: Annotated[
        float, typer.Option(help="Share of the target spread over all classes.")
    ] = 0.05,
    padding: Annotated[int, typer.Option(help="Images are shifted by up to this many pixels.")] = 4,
    border: Annotated[Border, typer.Option(help="What a shifted image shows at its edges.")] = "mirror",
    flip: Annotated[
        bool | None, typer.Option("--flip/--no-flip", help="Mirror images; by default all but digits.")
    ] = None,
    normalise: Annotated[
        bool, typer.Option(help="Give the network pixels less their mean, over their deviation.")
    ] = True,
    cutout: Annotated[int, typer.Option(help="Side of the square painted over, in pixels; 0: none.")] = 0,
    ema: Annotated[float, typer.Option(help="Decay of the averaged weights; 0: no averaging.")] = 0.0,
    seed: Annotated[int, typer.Option(help="Decides initial weights, order and augmentation.")] = 0,
    shield: Annotated[
        str | None,
        typer.Option(
            help=f"Train and test behind one of {', '.join(list_all_defenses())}, as in "
            "swrd:noise=image,sigma=0.1."
        ),
    ] = None,
    start: Annotated[
        Path | None, typer.Option(help="A safetensors file of the same network to start from; else random.")
    ] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, or auto: the GPU where there is one.")] = "auto",
    precision: Annotated[Precision, typer.Option(help="Precision of training.")] = "fp32",
    compile_mode: Annotated[
        CompileMode, typer.Option("--compile", help="How torch.compile is used.")
    ] = "off",
    out: Annotated[Path, typer.Option(help="Folder for weights, card and checkpoint.")] = Path("runs"),
    resume: Annotated[
        bool,
        typer.Option("--resume/--no-resume", help="Continue from the checkpoint in --out, if there is one."),
    ] = True,
    test_every: Annotated[
        int, typer.Option(help="Test after every this many epochs, and after the last.")
    ] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print the card as JSON instead of text.")] = False,
) -> None:
    """Train a classifier; writes ARCH-DATA.safetensors and its card, ARCH-DATA.json."""
    network, options = parse_spec(arch)
    settings = Recipe(
        data=data,
        arch=network,
        options=options,
        epochs=epochs,
        batch=batch,
        peak_lr=lr,
        optimizer=optimizer,
        momentum=momentum,
        nesterov=nesterov,
        schedule=schedule,
        milestones=_whole_numbers(milestones),
        drop=drop,
        weight_decay=weight_decay,
        decay=decay,
        label_smoothing=label_smoothing,
        padding=padding,
        border=border,
        flip=flip,
        normalise=normalise,
        cutout=cutout,
        ema=ema,
        seed=seed,
        precision=precision,
        compile_mode=compile_mode,
        shield=shield,
        start=start,
    )
    try:
        with training_bar(hidden=as_json) as progress:
            result = run_training(
                settings,
                folder=data_dir,
                out=out,
                device=device,
                resume=resume,
                test_every=test_every,
                progress=progress,
            )
    except KeyboardInterrupt as stop:
        raise KeyboardInterrupt(how_to_continue(checkpoint_path(settings.name, out))) from stop
    typer.echo(json.dumps(result.card, indent=2) if as_json else _summary(result))


def _whole_numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(each) for each in text.split(",") if text)
    except ValueError as error:
        raise InvalidInputError(f"milestones={text!r} should be whole numbers, as in 60,120,160") from error


def _summary(result: TrainResult) -> str:
    settings = result.settings
    behind = f" behind {settings.shield}" if settings.shield else ""
    return (
        f"{result.test_accuracy:.2%} of {result.test_images} test images right{behind} after "
        f"{settings.epochs} epochs, {result.seconds:.0f} s\n"
        f"weights {printable(result.weights)}\ncard    {printable(result.card_file)}"
    )
