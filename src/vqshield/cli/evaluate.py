"""`vqshield evaluate`: how much of a classifier's accuracy attacks leave, with and without a defense."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from vqshield.attacks import PRECISIONS, list_attacks
from vqshield.attacks.suites import list_suites, with_precision
from vqshield.classifiers import BUNDLED
from vqshield.cli.calibrate import CalibrationImages, calibrated_spec
from vqshield.cli.executors import (
    Address,
    ExecutorName,
    Retries,
    TaskCpus,
    TaskGpus,
    Workers,
    executor_for,
)
from vqshield.cli.options import (
    DEFENSES,
    AsJson,
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
    parse_eps,
)
from vqshield.cli.resumable import run_to_end, set_aside, write_summary
from vqshield.core.display_names import NONE
from vqshield.core.serialization import to_plain
from vqshield.data import SAMPLE_NAME
from vqshield.evaluation.page import caveats, evaluation_table
from vqshield.evaluation.study import Evaluation, EvaluationSummary
from vqshield.evaluation.study import evaluate as measure
from vqshield.runs.batch_norm import RUNNING
from vqshield.runs.study import Progress

DEFAULT = Evaluation()


def evaluate(
    attack: Annotated[
        list[str] | None,
        typer.Option(
            help=f"An attack, of {', '.join(list_attacks())}, as in pgd:steps=20,eot=5,surrogate=soft "
            f"(surrogate=none: ignores the defense), or a suite, of {', '.join(list_suites())}; may be "
            "repeated. Without it, natural accuracy alone."
        ),
    ] = None,
    defense: Annotated[
        list[str] | None,
        typer.Option(
            help=f"One of {DEFENSES}, as in swrd:size=3,codes=25, or {NONE}: attack the classifier as it is; "
            "may be repeated. Without it, the one that the classifier's file says it was fine-tuned behind, "
            f"else {NONE}."
        ),
    ] = None,
    data: Data = SAMPLE_NAME,
    data_dir: DataDir = None,
    classifier: Classifier = BUNDLED,
    calibrate: CalibrationImages = None,
    norm: Norm = DEFAULT.norm,
    eps: Eps = None,
    limit: Limit = None,
    runs: Annotated[int, typer.Option(help="Fresh draws of the defense behind each figure.")] = DEFAULT.runs,
    selection: Annotated[
        int | None, typer.Option(help="Draws that choose an image's strongest attack; without it, as --runs.")
    ] = None,
    seed: Seed = DEFAULT.seed,
    batch: Annotated[int, typer.Option(help="Images attacked at once.")] = DEFAULT.batch,
    precision: Precision = PRECISIONS[0],
    device: Device = "auto",
    out: Records = Path("vqshield-evaluation"),
    executor: ExecutorName = "local",
    workers: Workers = None,
    address: Address = None,
    task_cpus: TaskCpus = None,
    task_gpus: TaskGpus = None,
    retries: Retries = None,
    fresh: Fresh = False,
    summary_only: SummaryOnly = False,
    as_json: AsJson = False,
) -> None:
    """Attack a defended classifier: a table, summary.json, and records.jsonl with a line for every image."""

    def stored() -> EvaluationSummary:
        return EvaluationSummary.of(Evaluation.read(out))

    def run(progress: Progress) -> EvaluationSummary:
        return measure(
            classifier, data, attacks=[with_precision(each, precision) for each in attack or ()],
            defense=defense, norm=norm,
            eps=None if eps is None else parse_eps(eps, norm), runs=runs, selection=selection, seed=seed,
            batch=batch, limit=limit, data_dir=data_dir, device=device, out=out, executor=where,
            batch_norm=RUNNING if calibrate is None else calibrated_spec(classifier, defense, calibrate),
            progress=progress,
        )  # fmt: skip

    where = executor_for(
        executor, device=device, workers=workers, address=address, cpus=task_cpus, gpus=task_gpus,
        retries=retries,
    )  # fmt: skip
    if fresh and not summary_only:
        set_aside(out)
    summary = stored() if summary_only else run_to_end(run, stored, out, hidden=as_json)
    write_summary(out, summary)
    if as_json:
        typer.echo(json.dumps(to_plain(summary), indent=1))
        return
    console = Console()
    console.print(evaluation_table(summary).terminal())
    for line in caveats(summary):
        console.print(Text(line, style="bold red" if line.startswith("WARNING") else ""))
    typer.echo(f"\nFigures in {out / 'summary.json'}, every image in {out / 'records.jsonl'}")
