"""Certificates as tables in the terminal, with what each of them does not say."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from vqshield.attacks import ball
from vqshield.certification.l1 import L1Summary
from vqshield.certification.study import NORM
from vqshield.certification.summary import CertificationSummary, DrawsSummary, LinfLine, VoteSummary
from vqshield.core.errors import MissingExtraError
from vqshield.core.settings import format_value
from vqshield.reports.numbers import percent

if TYPE_CHECKING:
    from rich.table import Table

_BOUNDS = {
    "proposition1": "Proposition 1",
    "truncated_markov": "truncated Markov",
    "empirical_bernstein": "empirical Bernstein",
    "clopper_pearson": "Clopper-Pearson",
}


def certificate_tables(summary: CertificationSummary) -> "list[Table]":
    """A table for every kind of certificate that there is."""
    tables = [_vote_table(summary.title, summary.vote)] if summary.vote else []
    return tables + ([_draws_table(summary.title, summary.draws)] if summary.draws else [])


def certificate_caveats(summary: CertificationSummary) -> list[str]:
    """What must be said under the figures, whatever they are."""
    lines = [] if summary.complete else ["The run is not finished: these are the figures so far."]
    if summary.vote:
        linf = f"{255 * summary.vote.largest_linf:.2g}/255"
        lines.append(
            f"The L2 certificate holds for every image within the radius, if the noise is Gaussian and drawn "
            f"afresh; with this many draws it reaches at most {linf} in L-inf. Larger noise reaches farther."
        )
        if summary.vote.linf is not None:
            lines.append(linf_line(summary.vote.linf, "L2"))
    if summary.draws:
        lines.append(
            "The error bounds hold for the given images alone, not for a ball around them: another attack "
            "needs draws of its own. The smallest of several bounds is no bound: choose one beforehand."
        )
        caveats = [ball(NORM, each.eps).caveat for each in summary.draws]
        lines += [f"WARNING: {each}." for each in caveats if each is not None]
    return lines


def l1_table(summary: L1Summary) -> "Table":
    """Certified accuracy against the L1 radius."""
    table, text = _table(
        summary.title + ": worst case in L1",
        f"certified accuracy in % of {summary.images} images; the vote of all {summary.shifts} shifts, each "
        "asked once: nothing is estimated. 8-bit: on every 8-bit image within the radius; real-valued: on "
        "every image",
    )
    table.add_column("radius L1", justify="right", overflow="fold")
    for heading in ("as L-inf", "8-bit", "real-valued"):
        table.add_column(heading, justify="right")
    for point in summary.curve:
        table.add_row(
            f"{point.radius:g}",
            f"{255 * point.linf:.4f}/255",
            text(percent(point.certified), style="bold"),
            percent(point.real),
        )
    table.add_section()
    for name, value in (
        ("votes right", percent(summary.right)),
        ("draws right", percent(summary.accuracy)),
        ("mean radius", f"{summary.mean_radius:.3g}"),
        ("largest radius", f"{summary.largest_radius:.3g}"),
        ("scale", f"{summary.scale:.3g}"),
    ):
        table.add_row(text(name, style="dim"), value)
    return table


def l1_caveats(summary: L1Summary) -> list[str]:
    """What must be said under the figures, whatever they are."""
    lines = [] if summary.complete else ["The run is not finished: these are the figures so far."]
    lines.append(
        "The L1 certificate holds for certain, for the vote of all shifts of this very pattern, if the "
        "classifier gives one image one answer, whatever the batch around it."
    )
    return [*lines, linf_line(summary.linf, "L1")]


def linf_line(found: LinfLine, norm: str) -> str:
    """What the certificate says of an L-inf budget, so that nobody takes one for the other."""
    return (
        f"It is no L-inf certificate: {format_value(found.eps)} in L-inf takes a radius of "
        f"{found.needed:.3g} in {norm}, which {percent(found.certified)} % of the images reach."
    )


def _vote_table(title: str, vote: VoteSummary) -> "Table":
    drawn = "n =" if vote.mean_draws is None else "at most n ="
    table, text = _table(
        title + ": worst case in L2",
        f"certified accuracy in % of {vote.images} images; vote: of infinitely many draws, {drawn} "
        f"{vote.draws} drawn, alpha = {vote.alpha:g}; draw: of a single one; statement: of all images "
        f"at once, with probability ≥ {vote.confidence:g} (all but {vote.allowed_failures} hold)",
    )
    table.add_column("radius L2", justify="right", overflow="fold")
    for heading in ("as L-inf", "vote", "vote statement", "draw", "draw statement"):
        table.add_column(heading, justify="right")
    for point in vote.curve:
        table.add_row(
            f"{point.radius:g}",
            f"{255 * point.linf:.3f}/255",
            text(percent(point.vote), style="bold"),
            percent(point.vote_statement),
            text(percent(point.draw), style="bold"),
            percent(point.draw_statement),
        )
    table.add_section()
    for name, value in (
        ("draws right", percent(vote.accuracy)),
        ("abstained", percent(vote.abstained)),
        ("mean radius", f"{vote.mean_radius:.3g}"),
        ("sigma_eff", f"{vote.sigma_eff:.3g}"),
        ("copies", f"{vote.copies:g}"),
        *((("draws an image", f"{vote.mean_draws:,.0f}"),) if vote.mean_draws is not None else ()),
        *((("times fewer", f"{vote.saving:.1f}"),) if vote.saving is not None else ()),
    ):
        table.add_row(text(name, style="dim"), value)
    return table


def _draws_table(title: str, rows: Sequence[DrawsSummary]) -> "Table":
    first = rows[0]
    table, text = _table(
        title + ": error bounds for given images",
        f"certified accuracy in %, m = {first.draws} draws, delta = {first.delta:g}; mean: of "
        "1 - gamma; union, binomial: a draw's mean accuracy over all images is at least this, with "
        f"probability ≥ {1 - first.delta:g}",
    )
    table.add_column("bound", overflow="fold")
    for heading in ("mean", "union", "binomial", "N"):
        table.add_column(heading, justify="right")
    for row in rows:
        natural = row.eps == 0
        source = "natural" if natural else f"{row.attack.name} at {ball(NORM, row.eps).budget}"
        table.add_section()
        table.add_row(text(f"{source}: draws right {percent(row.accuracy)}", style="bold"))
        for name, bound in row.bounds.items():
            table.add_row(
                _BOUNDS.get(name, name),
                text(percent(bound.certified_accuracy), style="bold"),
                percent(bound.union),
                percent(bound.binomial),
                str(row.images),
            )
    return table


def _table(title: str, caption: str) -> "tuple[Table, Any]":
    try:
        from rich import box
        from rich.text import Text

        from vqshield.reports.folding import FoldingTable
    except ImportError as error:
        raise MissingExtraError("rich", "cli") from error
    return FoldingTable(title=Text(title), caption=Text(caption), box=box.SIMPLE_HEAD, pad_edge=False), Text
