"""A ladder as a table for terminals, pages and documents, and as a page with curves."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from vqshield.core.display_names import NONE, display_defense, display_name
from vqshield.core.settings import format_value
from vqshield.ladders.plot import ladder_plot, tries_plot
from vqshield.ladders.rungs import RUNGS, Rung
from vqshield.ladders.settings import LadderSettings
from vqshield.ladders.study import MAIN, LadderRow, LadderSummary, NotMeasured
from vqshield.reports.html import page
from vqshield.reports.table import Cell, Column, Table
from vqshield.reports.text import percent


@dataclass(frozen=True)
class LadderLine:
    """One rung, at one number of calls: the row of each subject, or the reason why it has none."""

    rung: Rung
    calls: int | None
    figures: tuple[LadderRow | str, ...]

    @property
    def title(self) -> str:
        return self.rung.title if self.calls is None else f"{self.rung.title}, {self.calls:,} calls"

    @property
    def seconds(self) -> float | None:
        """The seconds of the first subject that has them."""
        known = (row.seconds for row in self.figures if isinstance(row, LadderRow))
        return next((seconds for seconds in known if seconds is not None), None)


def ladder_lines(summary: LadderSummary) -> list[LadderLine]:
    """The rungs from the bottom up, query rungs once for each number of calls."""
    reasons = {(missing.subject, missing.rung): missing.reason for missing in summary.plan.not_measured}
    lines = []
    for rung in RUNGS:
        rows = {(row.subject, row.calls): row for row in summary.rows if row.rung == rung.name}
        for calls in sorted({calls for _, calls in rows}, key=lambda calls: calls or 0) or [None]:
            figures = tuple(
                rows.get((subject.name, calls)) or reasons.get((subject.name, rung.name), "not finished")
                for subject in summary.plan.subjects
            )
            lines.append(LadderLine(rung, calls, figures))
    return lines


def headline(summary: LadderSummary) -> str:
    """Clean accuracy, and the lowest under any attacker."""
    main, natural = summary.plan.subjects[0], summary.row("natural")
    attacked = [row for row in summary.rows if row.subject == MAIN and row.rung != "natural"]
    if natural is None or not attacked:
        return summary.title
    name = display_name(main.defense) if main.defense != NONE else main.classifier
    lowest = min(attacked, key=lambda row: row.mean)
    title = next(rung.title for rung in RUNGS if rung.name == lowest.rung)
    under = f"{percent(lowest.mean)} % under its strongest attacker ({title})"
    return f"{name}: {percent(natural.mean)} % clean, {under}"


def ladder_table(summary: LadderSummary) -> Table:
    """A line per rung, a column per subject; accuracies with their standard error over images."""
    return Table(
        title=summary.title,
        columns=[
            Column("attacker", "attacker"),
            Column("knows", "knows"),
            Column("needs", "needs"),
            *(Column(subject.name, subject.name, "percent") for subject in summary.plan.subjects),
            Column("calls", "calls", "count"),
            Column("seconds", "seconds", "number", format=".0f"),
        ],
        rows=[
            [
                Cell(line.title, notes=() if line.seconds is None else (f"{line.seconds:.0f} s",)),
                line.rung.knows,
                line.rung.needs,
                *(_cell(summary, figure) for figure in line.figures),
                line.calls or 0,
                Cell("") if line.seconds is None else line.seconds,
            ]
            for line in ladder_lines(summary)
        ],
        caption=f"{summary.images:,} images of {summary.data}; attacks: {summary.plan.settings.ball.budget}; "
        "accuracy in %, ± standard error over images; calls: model calls per image, every sample counted; "
        "seconds: for all images together, training included; red: less than half of the clean accuracy",
        facts=[
            (subject.name, f"{subject.classifier}, {display_defense(subject.defense)}")
            for subject in summary.plan.subjects
        ],
        missing="not run",
    )


def _cell(summary: LadderSummary, figure: LadderRow | str) -> Cell:
    """An accuracy, marked if it is below half of the clean accuracy."""
    if isinstance(figure, str):
        return Cell(None, notes=(figure,))
    natural = summary.row("natural", figure.subject)
    low = natural is not None and figure.mean < natural.mean / 2
    return Cell(figure, mark="low" if low else "")


def ladder_notes(summary: LadderSummary, *, audited: bool = False) -> list[str]:
    """The lines below the table: warnings, rungs that were not run, and whether an audit is missing."""
    lines = [] if summary.complete else ["The ladder is not finished: these are the results so far."]
    lines += [f"WARNING: {warning}" for warning in summary.warnings]
    caveat = summary.plan.settings.ball.caveat
    lines += [] if caveat is None else [f"WARNING: {caveat}."]
    lines += not_run_lines(summary.plan.not_measured)
    lines += [sentence] if (sentence := _tries_sentence(summary)) else []
    audit = "" if audited else f"Audit: {summary.audit}. "
    return [*lines, f"{audit}Every accuracy under attack is an upper bound."]


def not_run_lines(missing: Iterable[NotMeasured]) -> list[str]:
    """A sentence for each rung and reason."""
    names: dict[tuple[str, str], list[str]] = {}
    titles = {rung.name: rung.title for rung in RUNGS}
    for each in missing:
        names.setdefault((titles[each.rung], each.reason), []).append(each.subject)
    return [f"{rung} not run for {', '.join(group)}: {reason}." for (rung, reason), group in names.items()]


def _tries_sentence(summary: LadderSummary) -> str | None:
    """How much a random model loses where an image may be sent several times; None for any other model."""
    natural = summary.row("natural")
    if natural is None or natural.tries[0] == natural.tries[-1]:
        return None
    return (
        f"A random model answers differently each time. If an image may be sent {summary.tries[-1]} times "
        f"and one wrong answer is enough, clean accuracy falls from {percent(natural.tries[0])} % to "
        f"{percent(natural.tries[-1])} %."
    )


def render_ladder(summary: LadderSummary, *, row: Mapping[str, object] | None = None) -> str:
    """The page: the plot, the table, repeated submissions, and what it was made with.

    Args:
        row: what row.html shows instead of plots, where the ladder is a row of a leaderboard.
    """
    settings, title = summary.plan.settings, headline(summary)
    again = _tries_sentence(summary) if row is None else None
    drawn = bool(summary.rows) and row is None
    return page(
        "ladder.html" if row is None else "row.html",
        title=title,
        row=row,
        table=ladder_table(summary).without("knows", "needs", "calls", "seconds").html(bars=True, dense=True),
        plot=ladder_plot(summary, f"{title}. The values are in the table.") if drawn else None,
        again=again,
        tries=tries_plot(summary, again) if again else None,
        rungs=RUNGS,
        notes=[note for note in ladder_notes(summary, audited=row is not None) if note != again],
        facts=[
            ("Images", f"{summary.images} of {summary.data}"),
            ("Defense", summary.plan.subjects[0].defense),
            *settings_facts(settings),
            *summary.machine.items(),
        ],
    )


def settings_facts(settings: LadderSettings) -> list[tuple[str, str]]:
    """The attackers and their budget, by name."""
    calls, draws = (" and ".join(map(str, each)) for each in (settings.calls, settings.draws))
    return [
        ("Budget", settings.ball.budget),
        ("Defense-unaware attack", settings.ignorant),
        ("Transfer attack", f"{settings.transfer}, input diversity {format_value(settings.diversity)}"),
        ("Query attacks", f"square and rays, {calls} calls per image, {draws} samples per query"),
        ("White-box attack", settings.suite),
        ("Samples per accuracy", str(settings.runs)),
        ("Seed", str(settings.seed)),
    ]
