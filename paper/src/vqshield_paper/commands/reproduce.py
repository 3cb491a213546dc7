"""`vqshield reproduce`: reproduce the paper's results, with adaptive attacks for comparison."""

import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from vqshield.attacks.suites import list_suites
from vqshield.cli.derived import Option, PythonOnly, Values, derived
from vqshield.cli.executors import ExecutorOptions
from vqshield.cli.options import SAMPLES
from vqshield.cli.output import show, show_json
from vqshield.cli.resumable import RecordOptions, kept_in, run_to_end, set_aside
from vqshield.cli.unused import Unused, option_is, rendered_only
from vqshield.core import checks
from vqshield.core.environment import pick_device
from vqshield.core.errors import FileFormatError, InvalidInputError, VqshieldError
from vqshield.core.files import write_json
from vqshield.core.serialization import to_plain
from vqshield.data import list_datasets
from vqshield_paper.reports import caveats, terminal_tables, write_index, write_report
from vqshield_paper.reproduction.experiments import Experiment, experiment, list_experiments
from vqshield_paper.reproduction.model import Summary
from vqshield_paper.reproduction.parts import Options
from vqshield_paper.reproduction.published import DATA
from vqshield_paper.reproduction.runner import SUMMARY, NothingToRunError, Reproduction, summarise_folder
from vqshield_paper.reproduction.targets import TargetChoices

ALL = "all"
UNUSED = (rendered_only("ids"), Unused("with --dry-run", option_is("dry_run", True), "fresh"))


@derived(
    Options,
    TargetChoices.from_options,
    runs=SAMPLES,
    data=Option(help=f"Other images for a data set, as in imagenet=nips17; of {', '.join(list_datasets())}"),
    needed=PythonOnly("the data sets of the experiments"),
    adaptive=Option(
        "attack",
        help=f"Suite in addition to the paper's attacks, of {', '.join(list_suites())}, or none (default: "
        "adaptive-v1 on a GPU, the quick one on a CPU).",
    ),
    on_gpu=PythonOnly("follows from --device"),
    shared=PythonOnly("a folder in --out"),
    out=kept_in("reproduce"),
)
def reproduce(
    values: Values,
    ids: Annotated[
        list[str],
        typer.Argument(
            metavar="ID",
            help=f"Tables and plots, of {', '.join(list_experiments())}; .toml files; or all.",
        ),
    ],
    where: ExecutorOptions,
    records: RecordOptions,
    only: Annotated[
        list[str] | None, typer.Option(help=f"Only these data sets, of {', '.join(DATA)}; repeatable.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show the cells and about how long they take.")
    ] = False,
) -> None:
    """Reproduce tables and plots of the paper.

    Writes records, and a report in HTML, Markdown, LaTeX, PNG and SVG.
    """
    out, hidden = records.out, records.as_json
    for name in only or ():
        checks.one_of("--only", name, DATA)
    everything = [name.lower() for name in ids] == [ALL]
    if records.render_only:
        folders = (
            sorted(file.parent for file in out.glob("*/experiment.json"))
            if everything
            else [out / experiment(name).id for name in ids]
        )
        summaries = _rendered(folders, out, hidden=hidden)
        if hidden:
            show_json(summaries)
        return
    wanted = [experiment(name) for name in (list_experiments() if everything else ids)]
    if everything and only:
        wanted = [each for each in wanted if set(each.data) & set(only)]
    chosen = [_part_of(each, only) for each in wanted]
    needed = list(dict.fromkeys(name for each in chosen for name in each.data))
    found = values.call(TargetChoices.from_options, needed=needed)
    options = values.call(Options, on_gpu=pick_device(values["device"]).type == "cuda")
    executor = where.create(values["device"], here=True)
    answers, failures = [], []
    for each in chosen:
        try:
            if records.fresh and not dry_run:
                set_aside(out / each.id)
            plan = Reproduction(
                each, options=options, targets=found, out=out, executor=executor, command=_command()
            )
            answers.append(_carried_out(plan, dry_run=dry_run, hidden=hidden))
        except NothingToRunError as error:
            if len(chosen) == 1:
                raise
            show(f"{each.id} is left out: {error}", err=True)
        except VqshieldError as error:
            if len(chosen) == 1:
                raise
            failures.append(f"{each.id}: {error}")
            show(failures[-1], "", err=True)
    if hidden:
        show_json(answers)
    if failures:
        raise VqshieldError(f"{len(failures)} of {len(chosen)} were not carried out:\n" + "\n".join(failures))


def _rendered(folders: list[Path], out: Path, *, hidden: bool) -> list[Summary]:
    """Write and show the reports of records again, of unfinished runs too."""
    missing = [folder for folder in folders if not (folder / "experiment.json").is_file()]
    if missing or not folders:
        raise InvalidInputError(
            f"there is no experiment.json in {missing[0] if missing else f'a folder of {out}'}; "
            "give --out the folder of an earlier vqshield reproduce"
        )
    return [_report(folder, summarise_folder(folder), hidden=hidden) for folder in folders]


def _command() -> str:
    return shlex.join(["vqshield", *sys.argv[1:]])


def _part_of(whole: Experiment, only: list[str] | None) -> Experiment:
    if not only:
        return whole
    kept = tuple(part for part in whole.parts if part.data in only)
    if not kept:
        raise InvalidInputError(
            f"--only {', '.join(only)} selects no part of {whole.id}; it is about {', '.join(whole.data)}"
        )
    return replace(whole, parts=kept)


def _carried_out(plan: Reproduction, *, dry_run: bool, hidden: bool) -> object:
    """What --json prints: the summary, or the plan."""
    for part in plan.parts:
        if part.chosen.missing is not None:
            show(f"{plan.experiment.id}, {part.part.title} is not run: {part.chosen.missing}", err=True)
    return _plan(plan, hidden=hidden) if dry_run else to_plain(_run(plan, hidden=hidden))


def _run(plan: Reproduction, *, hidden: bool) -> Summary:
    summary = run_to_end(
        plan.run, lambda: summarise_folder(plan.folder), plan.folder, hidden=hidden, write=_report
    )
    return _report(plan.folder, summary, hidden=hidden)


def _report(folder: Path, summary: Summary, *, hidden: bool = True) -> Summary:
    write_json(folder / SUMMARY, to_plain(summary))
    written = write_report(summary, folder)
    if not hidden:
        show(*terminal_tables(summary), *caveats(summary), "", f"Report in {written[0]}")
    try:
        write_index(folder.parent)
    except FileFormatError as error:  # of another experiment, by an earlier version
        show(f"no index of all experiments is written: {error}", err=True)
    return summary


def _plan(plan: Reproduction, *, hidden: bool) -> object:
    plan.refuse_other_settings()
    rows = {str(folder.relative_to(plan.out)): row for folder, row in plan.estimates().items()}
    table = Table(title=f"{plan.experiment.id}: {plan.experiment.title}")
    for heading in ("study", "cells", "records", "done", "about"):
        table.add_column(heading, justify="left" if heading == "study" else "right")
    for study, row in rows.items():
        known = "unknown" if row.seconds is None else f"{row.seconds:.0f} s"
        table.add_row(study, str(row.cells), str(row.records), str(row.done), known)
    if not hidden:
        show(table)
    return {"id": plan.experiment.id, "studies": to_plain(rows)}
