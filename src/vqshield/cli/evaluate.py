"""`vqshield evaluate`: how much of a classifier's accuracy attacks leave, with and without a defense."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from vqshield.attacks import attacks, balls
from vqshield.cli.bars import progress_bar
from vqshield.data import SAMPLE_NAME, datasets
from vqshield.defenses import defenses
from vqshield.errors import InvalidInputError
from vqshield.experiments.evaluation import Evaluation
from vqshield.experiments.specification import NONE, EvaluationSettings
from vqshield.experiments.subject import BUNDLED, load_subject
from vqshield.experiments.summary import summarise_folder
from vqshield.files import write_atomically
from vqshield.reports.evaluation import caveats, evaluation_table
from vqshield.settings import parse_spec
from vqshield.suites import suites

DEFAULT = EvaluationSettings()


def evaluate(
    attack: Annotated[
        list[str] | None,
        typer.Option(
            help=f"An attack, of {', '.join(attacks())}, as in pgd:steps=20,eot=5,surrogate=soft "
            f"(surrogate=none: ignores the defense), or a suite, of {', '.join(suites())}; may be repeated. "
            "Without it, natural accuracy alone."
        ),
    ] = None,
    defense: Annotated[
        list[str] | None,
        typer.Option(
            help=f"A defense, of {', '.join(defenses())}, as in swrd:size=3,codes=25, or {NONE}: attack the "
            f"bare classifier; may be repeated. Without it, {', '.join(DEFAULT.defenses)}."
        ),
    ] = None,
    data: Annotated[str, typer.Option(help=f"Data set: {', '.join(datasets())}.")] = SAMPLE_NAME,
    data_dir: Annotated[Path | None, typer.Option(help="Folder with the data set's official files.")] = None,
    classifier: Annotated[
        str, typer.Option(help=f"A safetensors file, or {BUNDLED}, the bundled one.")
    ] = BUNDLED,
    norm: Annotated[str, typer.Option(help=f"The attacks' norm: {', '.join(balls())}.")] = DEFAULT.norm,
    eps: Annotated[str, typer.Option(help="The attacks' budget, as in 8/255 or 0.5.")] = "8/255",
    limit: Annotated[int | None, typer.Option(help="Only so many images; without it, all.")] = None,
    runs: Annotated[int, typer.Option(help="Fresh draws of the defense behind each figure.")] = DEFAULT.runs,
    selection: Annotated[
        int | None, typer.Option(help="Draws that choose an image's strongest attack; without it, as --runs.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Decides every draw of defenses and attacks.")] = DEFAULT.seed,
    batch: Annotated[int, typer.Option(help="Images attacked at once.")] = DEFAULT.batch,
    device: Annotated[str, typer.Option(help="cpu, cuda, or auto: the GPU where there is one.")] = "auto",
    out: Annotated[
        Path, typer.Option(help="Folder for records and summary; a run that was stopped goes on there.")
    ] = Path("vqshield-evaluation"),
    summary_only: Annotated[
        bool, typer.Option("--summary-only", help="Only sum up what is in --out, finished or not.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
) -> None:
    """Attack a defended classifier: a table, summary.json, and records.jsonl with a line for every image."""
    if not summary_only:
        settings = EvaluationSettings(
            attacks=tuple(attack or ()), defenses=tuple(defense or DEFAULT.defenses), norm=norm,
            eps=number("eps", eps), runs=runs, selection=selection, seed=seed, batch=batch,
        )  # fmt: skip
        subject = load_subject(
            data=data, data_dir=data_dir, classifier=classifier, limit=limit, device=device
        )
        with progress_bar("{task.description}", hidden=as_json) as bar:
            task = bar.add_task("starting", total=None)
            evaluation = Evaluation(
                settings,
                subject,
                out,
                lambda doing, done: bar.update(task, description=doing, completed=done),
            )
            bar.update(task, total=evaluation.work)
            try:
                evaluation.run()
            except KeyboardInterrupt as stop:
                _write(out)
                raise KeyboardInterrupt(
                    f"what is finished is in {out}; run the same command again to go on"
                ) from stop
    summary = _write(out)
    if as_json:
        typer.echo(json.dumps(summary, indent=1))
        return
    console = Console()
    console.print(evaluation_table(summary))
    for line in caveats(summary):
        console.print(Text(line, style="bold red" if line.startswith("WARNING") else ""))
    typer.echo(f"\nFigures in {out / 'summary.json'}, every image in {out / 'records.jsonl'}")


def _write(out: Path) -> dict[str, Any]:
    summary = summarise_folder(out)
    write_atomically(out / "summary.json", (json.dumps(summary, indent=1) + "\n").encode())
    return summary


def number(name: str, text: str) -> Any:
    """A number or fraction, read as settings are; whether it will do is for the settings to say."""
    _, settings = parse_spec(f"{name}:{name}={text}")
    if len(settings) > 1:
        raise InvalidInputError(f"{name}={text!r} should be one number, as in 8/255")
    return settings[name]
