"""An audit as a table in the terminal and as a page."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from vqshield.attacks import ball
from vqshield.auditing.flags import POWER
from vqshield.auditing.results import FAIL, PASS, SUSPICIOUS, UNDECIDED, AuditReport, Figure, Flag
from vqshield.core.entry_points import require
from vqshield.core.settings import format_value
from vqshield.reports.html import page

if TYPE_CHECKING:
    from rich.text import Text

_STYLES = {PASS: "green", FAIL: "bold red", SUSPICIOUS: "red"}
_NORMS = {"linf": "L∞", "l2": "L2", "l1": "L1"}
_LOW = 0.5  # of the clean accuracy


def audit_lines(report: AuditReport) -> list["Text"]:
    """A line per check, failures first: its outcome and the claim that is checked."""
    text: type[Text] = require("rich.text", "cli").Text
    width = max(len(flag.outcome) for flag in report.flags)
    lines = []
    for flag in sorted(report.flags, key=_order):
        outcome = f"{flag.outcome:<{width}}", _STYLES.get(flag.outcome, "yellow")
        lines.append(
            text.assemble(f"{flag.name:<3}  ", outcome, f"  {flag.title}", no_wrap=True, overflow="ellipsis")
        )
    return lines


def audit_notes(report: AuditReport) -> list[str]:
    """What the failed checks mean, and the budget."""
    failed = [flag for flag in sorted(report.flags, key=_order) if flag.outcome in (FAIL, SUSPICIOUS)]
    return [f"{flag.name}: {flag.meaning}." for flag in failed] + [_budget(report)]


def _order(flag: Flag) -> int:
    known = (FAIL, SUSPICIOUS, UNDECIDED)
    return known.index(flag.outcome) if flag.outcome in known else len(known) + (flag.outcome == PASS)


def render_audit(report: AuditReport) -> str:
    """One page without a network, a script or another file."""
    flags = [(flag, list(shown_figures(flag.figures))) for flag in report.flags]
    facts = [
        ("Natural accuracy", str(report.audit.natural)),
        ("Attacks given", "; ".join(f"{name} {left}" for name, left in report.audit.attacks.items())),
        ("Budget", _budget(report)),
        ("Images", f"{report.audit.n} of {report.data}"),
        ("Classifier", report.classifier),
        ("Seed", str(report.settings.seed)),
        *((name, str(value)) for name, value in report.machine.items()),
    ]
    return page("audit.html", title=headline(report), flags=flags, power=POWER, facts=facts)


def headline(report: AuditReport) -> str:
    """Whether the robust accuracy is credible, and whether it is low."""
    audit = report.audit
    budget = f"ε = {format_value(report.eps)}, {_NORMS.get(report.norm, report.norm)}, N = {audit.n}"
    attacked = f"robust accuracy of {report.defense} under {', '.join(report.given)} ({budget})"
    if report.passed:
        low = audit.reported.mean < _LOW * audit.natural.mean
        return f"Credible: {audit.reported} {attacked}." + (
            f" This is low: the clean accuracy is {100 * audit.natural.mean:.1f} %." if low else ""
        )
    names: dict[str, list[str]] = {FAIL: [], SUSPICIOUS: []}
    for flag in report.flags:
        if flag.outcome in names or not (audit.failed or flag.outcome == PASS):
            names.setdefault(flag.outcome, []).append(flag.name)
    reasons = "; ".join(
        f"{', '.join(flags)} {'failed' if outcome == FAIL else outcome}"
        for outcome, flags in names.items()
        if flags
    )
    if not audit.failed:
        return f"Undecided ({reasons}): at most {audit.reported} {attacked}."
    if audit.lowest.mean < audit.reported.mean:
        lowest = f"{100 * audit.lowest.mean:.1f} % under another attack of this audit"
        return f"Doubtful ({reasons}): {audit.reported} {attacked}, but {lowest}."
    return f"Doubtful ({reasons}): the {attacked} may be lower than reported."


def shown_figures(figures: Mapping[str, Figure]) -> Iterator[str]:
    """A line of text per value."""
    for name, value in figures.items():
        yield f"{name}: {value:.3g}" if isinstance(value, float) else f"{name}: {value}"


def _budget(report: AuditReport) -> str:
    within = ball(report.norm, report.eps)
    return f"budget: {within.budget}" + (f"; WARNING: {within.caveat}" if within.caveat else "")
