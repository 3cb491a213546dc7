"""A ladder as a table for terminals, pages and documents, and as a page with curves."""

from collections.abc import Iterable
from dataclasses import dataclass

from vqshield.core.display_names import NONE, display_defense
from vqshield.core.settings import format_value
from vqshield.ladders.plot import ladder_plot
from vqshield.ladders.rungs import RUNGS, Rung
from vqshield.ladders.study import MAIN, LadderRow, LadderSummary, NotMeasured, Subject
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


def subject_title(subject: Subject) -> str:
    """A subject with its classifier and its defense."""
    name = "this model" if subject.name == MAIN else subject.name
    shield = "no shield" if subject.defense == NONE else display_defense(subject.defense)
    return f"{name}: {subject.classifier}, {shield}"


def ladder_table(summary: LadderSummary) -> Table:
    """A line per rung, a column per subject; accuracies with their standard error over images."""
    return Table(
        title=summary.title,
        columns=[
            Column("attacker", "attacker"),
            Column("knows", "knows"),
            Column("needs", "needs"),
            *(
                Column(subject.name, subject.name, "percent", help=subject_title(subject))
                for subject in summary.plan.subjects
            ),
            Column("calls", "calls", "count", help="of the model, for an image"),
            Column("seconds", "seconds", "number", format=".0f"),
        ],
        rows=[
            [
                Cell(line.title, notes=(f"knows {line.rung.knows}",)),
                line.rung.knows,
                line.rung.needs,
                *(_cell(summary, figure) for figure in line.figures),
                line.calls or 0,
                Cell("") if line.seconds is None else line.seconds,
            ]
            for line in ladder_lines(summary)
        ],
        caption=f"attacks: {summary.plan.settings.ball.budget}; accuracy in %, ± standard error over images; "
        "calls: of the model, for an image, every sample counted; seconds: for all images together, training "
        "included; red: less than half of the clean accuracy",
        missing="not run",
    )


def _cell(summary: LadderSummary, figure: LadderRow | str) -> Cell:
    """An accuracy, marked if it is below half of the clean accuracy."""
    if isinstance(figure, str):
        return Cell(None, notes=(figure,))
    natural = summary.row("natural", figure.subject)
    low = natural is not None and figure.mean < natural.mean / 2
    return Cell(figure, mark="low" if low else "")


def ladder_notes(summary: LadderSummary) -> list[str]:
    """The lines below the table: its subjects, rungs that were not run, and the missing audit."""
    lines = [] if summary.complete else ["The ladder is not finished: these are the results so far."]
    lines += [f"WARNING: {warning}" for warning in summary.warnings]
    caveat = summary.plan.settings.ball.caveat
    lines += [] if caveat is None else [f"WARNING: {caveat}."]
    lines += [subject_title(subject) for subject in summary.plan.subjects]
    lines += not_run_lines(summary.plan.not_measured)
    lines += [
        f"{name}, if an image may be sent {summary.tries[-1]} times and one wrong answer is enough: "
        f"{', '.join(f'{_called(row)} {percent(row.tries[-1])}' for row in rows)} %."
        for name, rows in _random_rows(summary).items()
    ]
    return [*lines, f"Audit: {summary.audit}. Every accuracy under attack is an upper bound."]


def not_run_lines(missing: Iterable[NotMeasured]) -> list[str]:
    """A sentence for each rung and reason."""
    names: dict[tuple[str, str], list[str]] = {}
    for each in missing:
        names.setdefault((each.rung, each.reason), []).append(each.subject)
    return [f"{rung} not run for {', '.join(group)}: {reason}." for (rung, reason), group in names.items()]


def _random_rows(summary: LadderSummary) -> dict[str, list[LadderRow]]:
    """The rows of random subjects, by subject: another try may have another result."""
    random = {row.subject for row in summary.rows if row.tries[0] != row.tries[-1]}
    return {
        subject.name: [row for row in summary.rows if row.subject == subject.name]
        for subject in summary.plan.subjects
        if subject.name in random
    }


def _called(row: LadderRow) -> str:
    title = next(rung.title for rung in RUNGS if rung.name == row.rung)
    return title if row.calls is None else f"{title} {row.calls:,}"


def _tries_table(summary: LadderSummary) -> Table:
    """The accuracy of random subjects if the attacker may send an image several times."""
    return Table(
        title="When the attacker may try again",
        columns=[
            Column("image", "image"),
            *(
                Column(f"tries_{number}", f"{number} {'time' if number == 1 else 'times'}", "percent")
                for number in summary.tries
            ),
        ],
        rows=[
            [f"{name}: {_called(row)}", *row.tries]
            for name, rows in _random_rows(summary).items()
            for row in rows
        ],
        caption="A random model answers differently each time. Accuracy in % if the same image may be sent "
        "several times and one wrong answer is enough.",
    )


def render_ladder(summary: LadderSummary) -> str:
    """The page: the table, the plot, attackers who try again, and what it was made with."""
    tries, settings = _tries_table(summary), summary.plan.settings
    return page(
        "ladder.html",
        title=summary.title,
        table=ladder_table(summary).without("knows", "needs").html(bars=True),
        plot=ladder_plot(summary) if summary.rows else None,
        tries=tries.html() if tries.rows else None,
        notes=ladder_notes(summary),
        facts=[
            ("Budget", settings.ball.budget),
            ("Images", f"{summary.images} of {summary.data}"),
            ("Ignorant attack", settings.ignorant),
            ("Transfer attack", f"{settings.transfer}, input diversity {format_value(settings.diversity)}"),
            (
                "Query attacks",
                f"square and rays, {' and '.join(map(str, settings.draws))} draws per query",
            ),
            ("White-box attack", settings.suite),
            ("Draws behind an accuracy", str(settings.runs)),
            ("Seed", str(settings.seed)),
            *summary.machine.items(),
        ],
    )
