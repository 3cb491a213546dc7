"""An audit as a table in the terminal and as a page."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from vqshield.auditing.results import FAIL, NOT_RUN, PASS, SUSPICIOUS, TOO_FEW, AuditReport, Figure, Outcome
from vqshield.errors import MissingExtraError
from vqshield.reports.html import page

if TYPE_CHECKING:
    from rich.table import Table

_STYLES = {
    PASS: "green", FAIL: "bold red", SUSPICIOUS: "red", TOO_FEW: "yellow", NOT_RUN: "yellow",
}  # fmt: skip


def audit_table(report: AuditReport) -> "Table":
    """A line per flag: outcome, what ought to hold, what was found, and what that means."""
    try:
        from rich import box
        from rich.table import Table
        from rich.text import Text
    except ImportError as error:
        raise MissingExtraError("rich", "cli") from error
    table = Table(title=Text(headline(report)), box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("flag", no_wrap=True)
    table.add_column("", no_wrap=True)
    table.add_column("what ought to hold", overflow="fold", ratio=2)
    table.add_column("found", overflow="fold", ratio=2)
    table.add_column("meaning", overflow="fold", ratio=3)
    for flag in report.flags:
        table.add_row(
            flag.name,
            Text(flag.outcome, style=_STYLES[flag.outcome]),
            flag.title,
            Text("\n".join(shown_figures(flag.figures))),
            Text(flag.meaning),
        )
    return table


def render_audit(report: AuditReport) -> str:
    """One page that needs no network, no script and no other file."""
    flags = [(flag, list(shown_figures(flag.figures))) for flag in report.flags]
    return page("audit.html", title=headline(report), flags=flags, facts=_facts(report))


def headline(report: AuditReport) -> str:
    """The verdict first; no figure that this very audit contradicts or could not confirm stands alone."""
    audit = report.audit
    if report.passed:
        return f"{report.defense}: {audit.reported} under attack; all {len(report.flags)} checks passed"
    if not audit.failed:
        return f"{report.defense}: at most {audit.reported} under attack, not confirmed; {_counted(report)}"
    lowest = audit.lowest
    if lowest.mean < audit.reported.mean:
        return (
            f"{report.defense}: not believable: a probe leaves {100 * lowest.mean:.1f} % where the attacks "
            f"given leave {100 * audit.reported.mean:.1f} %; {_counted(report)}"
        )
    failed = [flag.name for flag in report.flags if flag.outcome == FAIL]
    verdict = "not believable" if failed else "suspicious"
    reasons = failed or [flag.name for flag in report.flags if flag.outcome == SUSPICIOUS]
    return f"{report.defense}: {verdict} because of {', '.join(reasons)}; {_counted(report)}"


def _counted(report: AuditReport) -> str:
    words: dict[Outcome, str] = {
        PASS: "passed", FAIL: "failed", SUSPICIOUS: "suspicious", TOO_FEW: "on too few images",
        NOT_RUN: "not run",
    }  # fmt: skip
    outcomes = [flag.outcome for flag in report.flags]
    shown = [f"{outcomes.count(each)} {word}" for each, word in words.items() if each in outcomes]
    return f"checks: {', '.join(shown)}"


def shown_figures(figures: Mapping[str, Figure]) -> Iterator[str]:
    """Each figure as a line of text."""
    for name, value in figures.items():
        yield f"{name}: {value:.3g}" if isinstance(value, float) else f"{name}: {value}"


def _facts(report: AuditReport) -> list[tuple[str, str]]:
    return [
        ("Natural accuracy", str(report.audit.natural)),
        ("Attacks given", "; ".join(f"{name} {each}" for name, each in report.audit.attacks.items())),
        ("Budget", f"{report.norm}, eps {report.eps:.5g}"),
        ("Images", f"{report.audit.n} of {report.data}"),
        ("Classifier", report.classifier),
        ("Seed", str(report.settings.seed)),
        *((name, str(value)) for name, value in report.machine.items()),
    ]
