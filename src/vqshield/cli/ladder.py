"""`vqshield ladder`: against whom a shield protects, and at what cost for the attacker."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from vqshield.attacks import PRECISIONS
from vqshield.attacks.suites import list_suites
from vqshield.classifiers import BUNDLED, named_defense
from vqshield.cli.calibrate import CalibrationImages, calibrated_file
from vqshield.cli.executors import (
    Address,
    ExecutorName,
    Retries,
    TaskCpus,
    TaskGpus,
    Workers,
    chosen_executor,
)
from vqshield.cli.options import (
    AsJson,
    Behind,
    Classifier,
    Data,
    DataDir,
    Device,
    Eps,
    Fresh,
    Limit,
    Norm,
    Precision,
    Records,
    Seed,
    SummaryOnly,
    UsualBatch,
    UsualRuns,
    parse_eps,
)
from vqshield.cli.resumable import run_to_end, set_aside, write_summary
from vqshield.core.devices import pick_device
from vqshield.core.display_names import NONE
from vqshield.core.errors import InvalidInputError
from vqshield.core.files import write_atomically
from vqshield.core.serialization import to_plain
from vqshield.data import SAMPLE_NAME
from vqshield.ladders.page import ladder_notes, ladder_table, render_ladder
from vqshield.ladders.study import BARE, LEAST_CALLS, LadderSettings, LadderSummary
from vqshield.ladders.study import ladder as measure
from vqshield.runs.study import Progress

FULL, QUICK = LadderSettings(), LadderSettings.quick()
QUICK_IMAGES = 32


def ladder(
    defense: Behind = None,
    source: Annotated[
        list[str] | None,
        typer.Option(
            help="A classifier that the transfer attacker holds, by file or name; give two of other "
            "architectures. Without any, that rung is not run."
        ),
    ] = None,
    control: Annotated[
        list[str] | None,
        typer.Option(
            help="Something to compare with, NAME=CLASSIFIER or NAME=CLASSIFIER+DEFENSE, as in "
            "noise=noise.safetensors+gaussian:sigma=0.06; may be repeated. Without any, the classifier "
            "without its shield."
        ),
    ] = None,
    suite: Annotated[
        str | None,
        typer.Option(
            help=f"The white-box attack, of {', '.join(list_suites())}, or an attack as for evaluate; "
            f"without it, {FULL.suite}, with --quick {QUICK.suite}."
        ),
    ] = None,
    calls: Annotated[
        list[int] | None,
        typer.Option(
            help="Calls of the model for an image after which query attacks are looked at, at least "
            f"{LEAST_CALLS}; may be repeated. Without it, {', '.join(map(str, FULL.calls))}, with --quick "
            f"{', '.join(map(str, QUICK.calls))}."
        ),
    ] = None,
    train_dir: Annotated[
        Path | None,
        typer.Option(
            help="Folder with the training images, for the grey-box attacker's own network; without it, that "
            "rung is not run."
        ),
    ] = None,
    train_data: Annotated[
        str | None, typer.Option(help="The data set in --train-dir; without it, that of the images.")
    ] = None,
    own_arch: Annotated[
        str | None,
        typer.Option(help="The grey-box attacker's network; without it, one that is not the classifier's."),
    ] = None,
    own_epochs: Annotated[
        int | None, typer.Option(help=f"Epochs that it is trained; without it, {FULL.own_epochs}.")
    ] = None,
    data: Data = SAMPLE_NAME,
    data_dir: DataDir = None,
    classifier: Classifier = BUNDLED,
    calibrate: CalibrationImages = None,
    norm: Norm = FULL.norm,
    eps: Eps = None,
    limit: Limit = None,
    runs: UsualRuns = None,
    seed: Seed = FULL.seed,
    batch: UsualBatch = None,
    quick: Annotated[
        bool,
        typer.Option(
            "--quick/--full",
            help=f"Fewer images ({QUICK_IMAGES}), calls and steps: under five minutes on two CPU cores.",
        ),
    ] = False,
    precision: Precision = PRECISIONS[0],
    device: Device = "auto",
    executor: ExecutorName = "local",
    workers: Workers = None,
    address: Address = None,
    task_cpus: TaskCpus = None,
    task_gpus: TaskGpus = None,
    retries: Retries = None,
    out: Records = Path("vqshield-ladder"),
    fresh: Fresh = False,
    summary_only: SummaryOnly = False,
    as_json: AsJson = False,
) -> None:
    """Climb the ladder of attackers, from transferred images to the white-box: one table and one page.

    Each rung says what its attacker has to know, how often they ask the model, and how long it took.
    """
    usual = QUICK if quick else FULL
    settings = replace(
        usual,
        norm=norm,
        eps=None if eps is None else parse_eps(eps, norm),
        suite=suite or usual.suite,
        calls=tuple(sorted(calls)) if calls else usual.calls,
        own_arch=own_arch,
        own_epochs=own_epochs or usual.own_epochs,
        runs=runs or usual.runs,
        selection=runs or usual.selection,
        seed=seed,
        batch=batch or usual.batch,
    ).in_precision(precision)

    def run(progress: Progress) -> LadderSummary:
        controls = control
        if calibrate is not None:
            behind = defense or named_defense(classifier) or NONE
            if behind == NONE:
                raise InvalidInputError("--calibrate given without a defense; give --defense")
            file = calibrated_file(classifier, behind, calibrate, data_dir=data_dir, device=device, out=out)
            controls = [*(control or [f"{BARE}={classifier}"]), f"calibrated={file}+{behind}"]
        return measure(
            classifier, data, defense=defense, sources=source or (), controls=controls, settings=settings,
            train_dir=train_dir, train_data=train_data, device=device, data_dir=data_dir,
            limit=QUICK_IMAGES if quick and limit is None else limit, out=out, progress=progress,
            executor=chosen_executor(
                executor, on_gpu=pick_device(device).type == "cuda", workers=workers, address=address,
                cpus=task_cpus, gpus=task_gpus, retries=retries,
            ),
        )  # fmt: skip

    def stored() -> LadderSummary:
        return LadderSummary.read(out)

    if fresh and not summary_only:
        set_aside(out)
    summary = stored() if summary_only else run_to_end(run, stored, out, hidden=as_json)
    write_summary(out, summary)
    write_atomically(out / "report.html", render_ladder(summary).encode())
    if as_json:
        typer.echo(json.dumps(to_plain(summary), indent=1))
        return
    Console().print(ladder_table(summary).without("knows").terminal(notes=False))
    for line in ladder_notes(summary):
        typer.echo(line)
    typer.echo(f"\nThe page is {out / 'report.html'}, figures are in {out / 'summary.json'}")
