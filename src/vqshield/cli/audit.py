"""`vqshield audit`: can the robust accuracy of a defended classifier be believed?"""

import json
from collections.abc import Mapping
from typing import Annotated, Any

import typer
from rich.console import Console
from torch import Tensor

from vqshield.attacks import PRECISIONS
from vqshield.attacks.suites import list_suites, with_precision
from vqshield.auditing import LEAST_IMAGES, PARTS, AuditReport
from vqshield.auditing.page import audit_table, render_audit
from vqshield.auditing.study import audit as run_audit
from vqshield.auditing.study import usual_suite
from vqshield.cli.bars import progress_bar
from vqshield.cli.derived import Option, PythonOnly, Values
from vqshield.cli.executors import ExecutorOptions
from vqshield.cli.options import AsJson, Precision, command
from vqshield.cli.resumable import kept_in
from vqshield.core.errors import InvalidInputError
from vqshield.core.files import write_atomically
from vqshield.data import load

FAILED = 3  # 1 and 2 are taken: see application.py
UNDECIDED = 4


def _unseen(text: str, typed: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
    reader, equals, folder = text.partition("=")
    if not (reader and equals and folder):
        raise InvalidInputError(f"--held-out {text!r} should be READER=DIR, such as npz=DIR")
    found = load(reader, "test", folder, limit=typed["limit"])
    return found.images.float() / 255, found.labels


@command(
    run_audit,
    attacks=Option(
        "attack", help=f"The attacks to judge, as for evaluate (default: {list_suites()[0]}, or -quick)."
    ),
    limit=Option(
        help=f"Use the first N images, at least {LEAST_IMAGES}: no audit of fewer passes.",
        default=(50, "an audit attacks each image many times"),
    ),
    quick=Option(flag="--quick/--full"),
    settings=PythonOnly("made from --quick and --seed"),
    held_out=Option(
        type=str,
        metavar="READER=DIR",
        help="Images that whoever made the model has not seen (R11): npz=DIR, folder=DIR, cifar10=DIR.",
        parse=_unseen,
    ),
    out=kept_in(
        "vqshield-audit", "Folder for audit.json, audit.html and records; an interrupted audit resumes there."
    ),
)
def audit(
    values: Values,
    where: ExecutorOptions,
    precision: Precision = PRECISIONS[0],
    strict: Annotated[
        bool,
        typer.Option("--strict", help="Count checks that are undecided or were not run as failed."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Check whether a robust accuracy is credible: fourteen checks, R1 to R14, with what they found.

    Ends with 0 if all checks passed, 3 if one failed or is suspicious, 4 if none failed but some are
    undecided or were not run. A credible robust accuracy may still be low.
    """
    executor, out = where.create(values["device"], here=True), values["out"]
    attacks = values["attacks"] or [usual_suite(quick=values["quick"])]
    with progress_bar("{task.description}", hidden=as_json) as bar:
        task = bar.add_task("starting", total=PARTS)
        try:
            report = values.call(
                run_audit,
                attacks=[with_precision(each, precision) for each in attacks],
                executor=executor,
                progress=lambda part: bar.update(task, description=part, advance=1),
            )
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


def exit_code(report: AuditReport, *, strict: bool) -> int:
    """What a script sees of an audit."""
    if report.passed:
        return 0
    return FAILED if strict or report.audit.failed else UNDECIDED
