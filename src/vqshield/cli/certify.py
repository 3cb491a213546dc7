"""`vqshield certify`: what samples prove about a defended classifier, per image and for all of them."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer
from rich.console import RenderableType

from vqshield.certification.l1 import L1Certification, certify_l1
from vqshield.certification.study import Certification
from vqshield.certification.study import certify as measure
from vqshield.certification.summary import CertificationSummary, L1Summary
from vqshield.cli.derived import Option, Values
from vqshield.cli.executors import ExecutorOptions
from vqshield.cli.options import command, parse_eps
from vqshield.cli.resumable import RecordOptions, Resumable, kept_in
from vqshield.core import checks


def _budgets(texts: Sequence[str], _: Mapping[str, Any]) -> tuple[float, ...]:
    return tuple(parse_eps(text) for text in texts)


def _tables(summary: CertificationSummary | L1Summary) -> list[RenderableType]:
    return [each.terminal() for each in summary.tables()]


@command(
    measure,
    certify_l1,
    eps=Option(type=list[str], parse=_budgets),
    radii=Option("radius", help="Report the certified accuracy at this radius, in --norm."),
    out=kept_in("vqshield-certificates"),
)
def certify(
    values: Values,
    where: ExecutorOptions,
    records: RecordOptions,
    norm: Annotated[
        str,
        typer.Option(
            help="l2: the certificates of --certificate, from samples. l1: the exact certificate of a "
            "splitting, as in --defense splitting:scale=0.5, from all of its shifts."
        ),
    ] = "l2",
) -> None:
    """Certify a defended classifier: tables, summary.json, and records.jsonl with a line for every image."""
    executor, radii = where.create(values["device"]), values["radii"] or ()
    if checks.one_of("norm", norm, ("l1", "l2")) == "l1":
        exact = Resumable(
            read=lambda out: L1Summary.of(L1Certification.read(out), radii=radii),
            tables=_tables,
            notes=L1Summary.caveats,
        )
        exact.carry_out(
            records, lambda progress: values.call(certify_l1, executor=executor, progress=progress)
        )
        return
    sampled = Resumable(
        read=lambda out: CertificationSummary.of(Certification.read(out), radii=radii),
        tables=_tables,
        notes=CertificationSummary.caveats,
    )
    sampled.carry_out(records, lambda progress: values.call(measure, executor=executor, progress=progress))
