"""`vqshield audit`: can the robust accuracy of a defended classifier be believed?"""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from torch import Tensor

from vqshield.attacks import PRECISIONS
from vqshield.attacks.suites import list_suites, with_precision
from vqshield.auditing import LEAST_IMAGES, PARTS, AuditReport
from vqshield.auditing.page import audit_table, render_audit
from vqshield.auditing.study import audit as run_audit
from vqshield.auditing.study import usual_suite
from vqshield.classifiers import BUNDLED
from vqshield.cli.bars import progress_bar
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
    AsJson,
    Behind,
    Classifier,
    Data,
    DataDir,
    Device,
    Eps,
    Norm,
    Precision,
    parse_eps,
)
from vqshield.core.errors import InvalidInputError
from vqshield.core.files import write_atomically
from vqshield.data import SAMPLE_NAME, load

FAILED = 3  # 1 and 2 are taken: see application.py
UNDECIDED = 4


def audit(
    attack: Annotated[
        list[str] | None,
        typer.Option(
            help=f"The attacks to judge, as for evaluate; without it, {list_suites()[0]}, or -quick."
        ),
    ] = None,
    defense: Behind = None,
    data: Data = SAMPLE_NAME,
    data_dir: DataDir = None,
    classifier: Classifier = BUNDLED,
    norm: Norm = "linf",
    eps: Eps = None,
    limit: Annotated[
        int, typer.Option(help=f"Use the first N images, at least {LEAST_IMAGES}: no audit of fewer passes.")
    ] = 50,
    seed: Annotated[int, typer.Option(help="Decides every draw.")] = 0,
    precision: Precision = PRECISIONS[0],
    device: Device = "auto",
    quick: Annotated[bool, typer.Option("--quick/--full", help="Fewer draws and steps, for a CPU.")] = True,
    out: Annotated[Path, typer.Option(help="Folder for audit.json, audit.html; resumes there.")] = Path(
        "vqshield-audit"
    ),
    executor: ExecutorName = "local",
    workers: Workers = None,
    address: Address = None,
    task_cpus: TaskCpus = None,
    task_gpus: TaskGpus = None,
    retries: Retries = None,
    held_out: Annotated[
        str | None,
        typer.Option(
            metavar="READER=DIR",
            help="Images that whoever made the model has not seen (R11): npz=DIR, folder=DIR, cifar10=DIR.",
        ),
    ] = None,
    strict: Annotated[
        bool,
        typer.Option("--strict", help="Checks that are undecided or were not run count as failed."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Check whether a robust accuracy is credible: fourteen checks, R1 to R14, with what they found.

    Ends with 0 if all checks passed, 3 if one failed or is suspicious, 4 if none failed but some are
    undecided or were not run. A credible robust accuracy may still be low.
    """
    where = executor_for(
        executor, device=device, here=True, workers=workers, address=address, cpus=task_cpus,
        gpus=task_gpus, retries=retries,
    )  # fmt: skip
    judged = [with_precision(each, precision) for each in attack or [usual_suite(quick=quick)]]
    unseen = None if held_out is None else _unseen(held_out, limit)
    with progress_bar("{task.description}", hidden=as_json) as bar:
        task = bar.add_task("starting", total=PARTS)
        try:
            report = run_audit(
                classifier, data, defense=defense, attacks=judged, norm=norm,
                eps=None if eps is None else parse_eps(eps, norm), quick=quick, seed=seed, limit=limit,
                data_dir=data_dir, device=device, out=out, held_out=unseen, executor=where,
                progress=lambda part: bar.update(task, description=part, advance=1),
            )  # fmt: skip
        except KeyboardInterrupt as stop:
            raise KeyboardInterrupt(
                f"what was measured is in {out}; run the same command again to continue"
            ) from stop
    write_atomically(out / "audit.html", render_audit(report).encode())
    if as_json:
        typer.echo(json.dumps(report.plain(), indent=1))
    else:
        Console().print(audit_table(report))
        typer.echo(f"Details in {out / 'audit.html'}, figures in {out / 'audit.json'}")
    raise typer.Exit(exit_code(report, strict=strict))


def _unseen(text: str, limit: int) -> tuple[Tensor, Tensor]:
    reader, equals, folder = text.partition("=")
    if not (reader and equals and folder):
        raise InvalidInputError(f"--held-out {text!r} should be READER=DIR, such as npz=DIR")
    found = load(reader, "test", folder, limit=limit)
    return found.images.float() / 255, found.labels


def exit_code(report: AuditReport, *, strict: bool) -> int:
    """What a script sees of an audit."""
    if report.passed:
        return 0
    return FAILED if strict or report.audit.failed else UNDECIDED
