"""An audit as a table in the terminal and as a page."""

import math
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from vqshield.attacks import ball
from vqshield.auditing.flags import CHECKS
from vqshield.auditing.results import AuditReport, Figure, Flag, Uncertain
from vqshield.core.entry_points import require
from vqshield.core.settings import format_value
from vqshield.reports.html import page
from vqshield.reports.plots import LIGHT, Plot, percent_axis

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture
    from rich.text import Text

_CURVES = {"R2": ("steps", "steps of the attack (R2)"), "R3": ("eps", "budget of the attack (R3)")}
_NUMBER = r"[\d.e+-]{1,12}"
_CLASSES = {"pass": "pass", "fail": "fail", "suspicious": "fail", "undecided": "unsure", "not run": "unsure"}
_STYLES = {"pass": "green", "fail": "bold red", "suspicious": "red"}
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
    failed = [flag for flag in sorted(report.flags, key=_order) if flag.outcome in ("fail", "suspicious")]
    warning = [f"WARNING: {report.warning}."] if report.warning else []
    return warning + [f"{flag.name}: {_fractions(flag.meaning)}." for flag in failed] + [_budget(report)]


def _order(flag: Flag) -> int:
    known = ("fail", "suspicious", "undecided")
    return known.index(flag.outcome) if flag.outcome in known else len(known) + (flag.outcome == "pass")


def render_audit(report: AuditReport) -> str:
    """One page without a network, a script or another file: failures first, numbers folded."""
    facts = [
        ("Clean accuracy", str(report.natural)),
        ("Attacks given", "; ".join(f"{name} {left}" for name, left in report.attacks.items())),
        ("Budget", _budget(report)),
        ("Images", f"{report.n} of {report.data}"),
        ("Classifier", report.classifier + (f"; WARNING: {report.warning}" if report.warning else "")),
        ("Seed", str(report.settings.seed)),
        *((name, str(value)) for name, value in report.machine.items()),
    ]
    return page(
        "audit.html",
        title=headline(report),
        flags=[(flag, list(shown_figures(flag.figures))) for flag in sorted(report.flags, key=_order)],
        meanings={flag.name: _fractions(flag.meaning) for flag in report.flags},
        classes=_CLASSES,
        checks=CHECKS,
        plot=curves_plot(report),
        facts=facts,
    )


def curves_plot(report: AuditReport) -> Plot | None:
    """Accuracy over the attack's steps (R2) and budget (R3); None where neither was varied."""
    measured = {flag.name: flag.figures for flag in report.flags}
    curves: dict[str, dict[str, Uncertain]] = {}
    for name, (what, axis) in _CURVES.items():
        for figure, value in measured.get(name, {}).items():
            if isinstance(value, Uncertain) and (number := re.fullmatch(rf"{what} ({_NUMBER})", figure)):
                curves.setdefault(axis, {})[_fractions(number[1])] = value

    def draw(picture: "Picture", stacked: bool) -> None:
        picture.set_size_inches((4.3, 2.5 * len(curves)) if stacked else (11.0, 2.8))
        panels = picture.subplots(*((len(curves), 1) if stacked else (1, len(curves))), squeeze=False)
        for axes, (axis, points) in zip(panels.flat, curves.items(), strict=True):
            errors = [196 * value.standard_error for value in points.values()]
            means = [100 * value.mean for value in points.values()]
            axes.errorbar(list(points), means, yerr=errors, color=LIGHT.ours, marker="o")
            axes.set_title(axis, loc="left")
            percent_axis(axes)

    shown = {
        axis: [f"{value} at {place}" for place, value in points.items()] for axis, points in curves.items()
    }
    text = "; ".join(f"{axis}: {', '.join(points)}" for axis, points in shown.items())
    return Plot("curves", f"Accuracy by {text}", draw) if curves else None


def headline(report: AuditReport) -> str:
    """Whether the robust accuracy is credible, and whether it is low."""
    budget = f"ε = {format_value(report.eps)}, {_NORMS.get(report.norm, report.norm)}, N = {report.n}"
    attacked = f"robust accuracy of {report.defense} under {', '.join(report.given)} ({budget})"
    if report.passed:
        low = report.reported.mean < _LOW * report.natural.mean
        return f"Credible: {report.reported} {attacked}." + (
            f" This is low: the clean accuracy is {100 * report.natural.mean:.1f} %." if low else ""
        )
    names: dict[str, list[str]] = {"fail": [], "suspicious": []}
    for flag in report.flags:
        if flag.outcome in names or not (report.failed or flag.outcome == "pass"):
            names.setdefault(flag.outcome, []).append(flag.name)
    reasons = "; ".join(
        f"{', '.join(flags)} {'failed' if outcome == 'fail' else outcome}"
        for outcome, flags in names.items()
        if flags
    )
    if not report.failed:
        return f"Undecided ({reasons}): at most {report.reported} {attacked}."
    if report.lowest.mean < report.reported.mean:
        lowest = f"{100 * report.lowest.mean:.1f} % under another attack of this audit"
        return f"Doubtful ({reasons}): {report.reported} {attacked}, but {lowest}."
    return f"Doubtful ({reasons}): the {attacked} may be lower than reported."


def shown_figures(figures: Mapping[str, Figure]) -> Iterator[str]:
    """A line of text per value, budgets as n/255."""
    for name, value in figures.items():
        shown = _fractions(name) if "eps" in name else name
        yield f"{shown}: {value:.3g}" if isinstance(value, float) else f"{shown}: {value}"


def _fractions(text: str) -> str:
    """A text with multiples of 1/255 as fractions; its decimals have six digits."""

    def fraction(found: re.Match[str]) -> str:
        steps = 255 * float(found[0])
        return f"{round(steps)}/255" if math.isclose(steps, round(steps), rel_tol=1e-5) else found[0]

    return re.sub(r"\b0\.\d{4,}\b", fraction, text)


def _budget(report: AuditReport) -> str:
    within = ball(report.norm, report.eps)
    return f"budget: {within.budget}" + (f"; WARNING: {within.caveat}" if within.caveat else "")
