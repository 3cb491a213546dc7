"""`vqshield audit`: can the robust accuracy of a defended classifier be believed?"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from torch import Tensor

from vqshield.attacks import PRECISIONS
from vqshield.attacks.suites import list_suites, with_precision
from vqshield.auditing import LEAST_IMAGES, PARTS, AuditReport, read_audit
from vqshield.auditing.page import audit_lines, audit_notes, headline, render_audit
from vqshield.auditing.study import FILE, usual_suite
from vqshield.auditing.study import audit as run_audit
from vqshield.cli.derived import Option, PythonOnly, Values
from vqshield.cli.executors import ExecutorOptions
from vqshield.cli.options import Precision, Quick, command
from vqshield.cli.resumable import RecordOptions, carry_out, kept_in
from vqshield.cli.unused import PRECISE, rendered_only
from vqshield.core.errors import InvalidInputError
from vqshield.core.files import write_atomically
from vqshield.core.progress import Progress
from vqshield.data import load

FAILED = 3  # 1 and 2 are taken: see application.py
UNDECIDED = 4
UNUSED = (rendered_only("strict"), PRECISE)


def _unseen(text: str, typed: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
    reader, equals, folder = text.partition("=")
    if not (reader and equals and folder):
        raise InvalidInputError(f"--held-out {text!r} should be READER=DIR, such as npz=DIR")
    images = load(reader, "test", folder, limit=typed["limit"])
    return images.images.float() / 255, images.labels


def _read(out: Path) -> AuditReport:
    if not (out / FILE).is_file():
        raise InvalidInputError(f"there is no {FILE} in {out}: no audit was finished there")
    return read_audit(out / FILE)


@command(
    run_audit,
    attacks=Option(
        "attack", help=f"The attacks to judge, as for evaluate (default: {list_suites()[0]}, or -quick)."
    ),
    limit=Option(
        help=f"Use the first N images, at least {LEAST_IMAGES} (default: all; with --quick {LEAST_IMAGES})."
    ),
    settings=PythonOnly("made from --quick and --seed"),
    held_out=Option(
        type=str,
        metavar="READER=DIR",
        help="Images that the model's authors never saw (R11): npz=DIR, folder=DIR, cifar10=DIR.",
        parse=_unseen,
    ),
    out=kept_in("audit"),
)
def audit(
    values: Values,
    where: ExecutorOptions,
    records: RecordOptions,
    precision: Precision = PRECISIONS[0],
    quick: Quick = False,
    strict: Annotated[
        bool,
        typer.Option("--strict", help="Count checks that are undecided or were not run as failed."),
    ] = False,
) -> None:
    """Check whether a robust accuracy is credible.

    Fourteen checks, R1 to R14. Ends with 0 if all passed, 3 if one failed or is suspicious, 4 if none failed
    but some are undecided or were not run. A credible robust accuracy may still be low.
    """
    executor = where.create(values["device"], here=True)
    attacks = values["attacks"] or [usual_suite(quick=quick)]
    if quick and values["limit"] is None:
        values["limit"] = LEAST_IMAGES

    def run(progress: Progress) -> AuditReport:
        parts: list[str] = []

        def report(part: str) -> None:
            progress(part, len(parts), PARTS)
            parts.append(part)

        precise = [with_precision(attack, precision) for attack in attacks]
        audited = values.call(run_audit, attacks=precise, executor=executor, progress=report)
        progress("audited", PARTS, PARTS)
        return audited

    report = carry_out(
        records,
        run,
        read=_read,
        tables=lambda report: [headline(report), *audit_lines(report)],
        notes=audit_notes,
        write=lambda out, report: write_atomically(out / "audit.html", render_audit(report).encode()),
        files="Details in {out}/audit.html, results in {out}/audit.json",
        plain=AuditReport.plain,
    )
    raise typer.Exit(exit_code(report, strict=strict))


def exit_code(report: AuditReport, *, strict: bool) -> int:
    """What a script sees of an audit."""
    if report.passed:
        return 0
    return FAILED if strict or report.audit.failed else UNDECIDED
