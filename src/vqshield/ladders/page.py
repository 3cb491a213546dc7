"""A ladder's results: a table for terminals, pages and documents, and a page with the curves as well."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from vqshield.core.display_names import NONE, display_defense
from vqshield.core.settings import format_value
from vqshield.ladders.plot import ladder_plot
from vqshield.ladders.rungs import RUNGS, Rung
from vqshield.ladders.study import MAIN, LadderRow, LadderSummary, Subject
from vqshield.reports.html import page
from vqshield.reports.table import Cell, Column, Table
from vqshield.reports.text import percent


@dataclass(frozen=True, kw_only=True)
class LadderLine:
    """One rung, at one number of calls, and its result for each subject; a reason where it has none."""

    rung: Rung
    calls: int | None
    figures: tuple[LadderRow | str, ...]

    @property
    def title(self) -> str:
        """The rung, with its calls."""
        return self.rung.title if self.calls is None else f"{self.rung.title}, {self.calls:,} calls"

    @property
    def seconds(self) -> float | None:
        """How long it took for the first subject that knows."""
        known = [row.seconds for row in self.figures if isinstance(row, LadderRow)]
        return next((each for each in known if each is not None), None)


def ladder_lines(summary: LadderSummary) -> list[LadderLine]:
    """The rungs from the bottom up, query rungs once for each number of calls."""
    subjects = [each.name for each in summary.plan.subjects]
    reasons = {(each.subject, each.rung): each.reason for each in summary.plan.not_measured}
    lines = []
    for rung in RUNGS:
        rows = {(row.subject, row.calls): row for row in summary.rows if row.rung == rung.name}
        for calls in sorted({calls for _, calls in rows}, key=lambda each: each or 0) or [None]:
            figures = tuple(
                rows.get((name, calls)) or reasons.get((name, rung.name), "not finished") for name in subjects
            )
            lines.append(LadderLine(rung=rung, calls=calls, figures=figures))
    return lines


def subject_title(subject: Subject) -> str:
    """A subject as a heading says it."""
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
                Column(each.name, each.name, "percent", help=subject_title(each))
                for each in summary.plan.subjects
            ),
            Column("calls", "calls", "count", help="of the model, for an image"),
            Column("seconds", "seconds", "number", format=".0f"),
        ],
        rows=[
            [
                Cell(line.title, notes=(f"knows {line.rung.knows}",)),
                line.rung.knows,
                line.rung.needs,
                *(_cell(summary, each) for each in line.figures),
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
    """A result, marked where less than half of the clean accuracy is left."""
    if isinstance(figure, str):
        return Cell(None, notes=(figure,))
    natural = summary.row("natural", figure.subject)
    low = natural is not None and figure.mean < natural.mean / 2
    return Cell(figure, mark="low" if low else "")


def figure_text(figure: LadderRow | str) -> str:
    """A result with its standard error, or that there is none."""
    if isinstance(figure, str):
        return "not run"
    return f"{percent(figure.mean)} ± {percent(figure.standard_error)}"


def ladder_notes(summary: LadderSummary) -> list[str]:
    """What must be said below the table: who the subjects are, and what was neither run nor audited."""
    lines = [] if summary.complete else ["The ladder is not finished: these are the figures so far."]
    lines += [f"WARNING: {warning}" for warning in summary.warnings]
    caveat = summary.plan.settings.ball.caveat
    lines += [] if caveat is None else [f"WARNING: {caveat}."]
    lines += [subject_title(each) for each in summary.plan.subjects]
    lines += not_run_lines((each.rung, each.reason, each.subject) for each in summary.plan.not_measured)
    lines += _tries_lines(summary)
    lines.append(
        f"Audit: {summary.audit}. Take every figure under attack for an upper bound of what is left."
    )
    return lines


def not_run_lines(missing: Iterable[tuple[str, str, str]]) -> list[str]:
    """A sentence for each rung and reason of triples with what was not run for that reason."""
    names: dict[tuple[str, str], list[str]] = {}
    for rung, reason, name in missing:
        names.setdefault((rung, reason), []).append(name)
    return [f"{rung} not run for {', '.join(each)}: {reason}." for (rung, reason), each in names.items()]


def _random_rows(summary: LadderSummary) -> dict[str, list[LadderRow]]:
    """The rows of random subjects, by subject: there a further try may turn out otherwise."""
    random = [row.subject for row in summary.rows if row.tries[0] != row.tries[-1]]
    return {
        each.name: [row for row in summary.rows if row.subject == each.name]
        for each in summary.plan.subjects
        if each.name in random
    }


def _called(row: LadderRow) -> str:
    title = next(rung.title for rung in RUNGS if rung.name == row.rung)
    return title if row.calls is None else f"{title} {row.calls:,}"


def _tries_lines(summary: LadderSummary) -> list[str]:
    """How much is left where the attacker may send an image again."""
    return [
        f"{name}, where an image may be sent {summary.tries[-1]} times and one wrong answer is enough: "
        f"{', '.join(f'{_called(row)} {percent(row.tries[-1])}' for row in rows)} %."
        for name, rows in _random_rows(summary).items()
    ]


def tries_table(summary: LadderSummary) -> Table:
    """The accuracy of random subjects where the attacker may send an image several times."""
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
        caption="A random model answers differently each time. Accuracy in % where the same image may be "
        "sent several times and one wrong answer is enough.",
    )


def ladder_markdown(summary: LadderSummary) -> str:
    """The table for a document."""
    return ladder_table(summary).without("needs").markdown()


def render_ladder(summary: LadderSummary) -> str:
    """The page: the table, the plot, attackers who try again, and what it was made with."""
    tries = tries_table(summary)
    return page(
        "ladder.html",
        title=summary.title,
        table=ladder_table(summary).without("knows", "needs").html(bars=True),
        plot=ladder_plot(summary) if summary.rows else None,
        tries=tries.html() if tries.rows else None,
        notes=ladder_notes(summary),
        facts=_facts(summary),
    )


def _facts(summary: LadderSummary) -> Sequence[tuple[str, str]]:
    chosen = summary.plan.settings
    return [
        ("Budget", chosen.ball.budget),
        ("Images", f"{summary.images} of {summary.data}"),
        ("Ignorant attack", chosen.ignorant),
        ("Transfer attack", f"{chosen.transfer}, input diversity {format_value(chosen.diversity)}"),
        ("Query attacks", f"square and rays, with {' and '.join(map(str, chosen.draws))} draws a query"),
        ("White-box attack", chosen.suite),
        ("Draws behind a figure", str(chosen.runs)),
        ("Seed", str(chosen.seed)),
        *summary.machine.items(),
    ]
