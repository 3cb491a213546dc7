"""`vqshield certify`: what samples prove about a defended classifier, per image and for all of them."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from vqshield.certification.l1 import L1Certification, certify_l1
from vqshield.certification.study import Certification
from vqshield.certification.study import certify as measure
from vqshield.certification.summary import CertificationSummary, L1Summary
from vqshield.cli.derived import Option, Values
from vqshield.cli.executors import ExecutorOptions
from vqshield.cli.options import command, parse_eps
from vqshield.cli.resumable import RecordOptions, carry_out, kept_in
from vqshield.cli.unused import Unused, option_is, rendered_only
from vqshield.core import checks

_BOUND, _VOTE = "attack eps bound_samples delta", "selection samples alpha"
UNUSED = (
    rendered_only("norm radius"),
    Unused("with --norm l1", option_is("norm", "l1"), f"certificate {_BOUND} {_VOTE}"),
    Unused("without --norm l1", option_is("norm", "l2"), "after"),
    Unused(
        "with --norm l1 and without --after",
        lambda typed: typed["norm"] == "l1" and typed["after"] is None,
        "seed",
    ),
    Unused("without --certificate draws or all", option_is("certificate", "vote", "sequential"), _BOUND),
    Unused("with --certificate draws", option_is("certificate", "draws"), f"{_VOTE} radius"),
)


def _budgets(texts: Sequence[str], _: Mapping[str, object]) -> tuple[float, ...]:
    return tuple(parse_eps(text) for text in texts)


@command(
    measure,
    certify_l1,
    eps=Option(type=list[str], parse=_budgets),
    radii=Option("radius", help="Report the certified accuracy at this radius, in --norm."),
    out=kept_in("certify"),
)
def certify(
    values: Values,
    where: ExecutorOptions,
    records: RecordOptions,
    norm: Annotated[
        str,
        typer.Option(
            help="l2: the certificates of --certificate, from samples. l1: the exact certificate of the "
            "defense splitting:scale=0.5, or another splitting, from all of its shifts."
        ),
    ] = "l2",
) -> None:
    """Certify the predictions of a defended classifier.

    Prints tables; writes summary.json, and records.jsonl with a line for every image.
    """
    exact, radii = checks.one_of("norm", norm, ("l1", "l2")) == "l1", values["radii"] or ()
    certify_by: Callable[..., CertificationSummary | L1Summary] = certify_l1 if exact else measure
    executor = where.create(values["device"])

    def read(out: Path) -> CertificationSummary | L1Summary:
        if exact:
            return L1Summary.of(L1Certification.read(out), radii=radii)
        return CertificationSummary.of(Certification.read(out), radii=radii)

    carry_out(
        records,
        lambda progress: values.call(certify_by, executor=executor, progress=progress),
        read=read,
        tables=lambda summary: [table.terminal() for table in summary.tables()],
        notes=lambda summary: summary.caveats(),
    )
