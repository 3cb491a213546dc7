"""A ladder's figures: a table in the terminal, and a page with the table, the curves and what they mean."""

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vqshield.core.display_names import NONE, display_defense
from vqshield.core.errors import MissingExtraError
from vqshield.core.settings import format_value
from vqshield.ladders.plot import ladder_plot
from vqshield.ladders.rungs import RUNGS, Rung
from vqshield.ladders.study import MAIN, LadderRow, LadderSummary, Subject
from vqshield.reports.html import page
from vqshield.reports.numbers import duration, percent

if TYPE_CHECKING:
    from rich.table import Table

_NO_CALLS = "0"


@dataclass(frozen=True, kw_only=True)
class LadderLine:
    """One rung, at one number of calls, and its figure for each subject; a reason where it has none."""

    rung: Rung
    calls: int | None
    figures: tuple[LadderRow | str, ...]

    @property
    def title(self) -> str:
        """The rung, with its calls."""
        return self.rung.title if self.calls is None else f"{self.rung.title}, {self.calls:,} calls"

    @property
    def cost_calls(self) -> str:
        """How often the attacker asks about an image."""
        return _NO_CALLS if self.calls is None else f"{self.calls:,}"

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
                rows.get((name, calls)) or f"not run: {reasons.get((name, rung.name), 'not finished')}"
                for name in subjects
            )
            lines.append(LadderLine(rung=rung, calls=calls, figures=figures))
    return lines


def subject_title(subject: Subject) -> str:
    """A subject as a heading says it."""
    name = "this model" if subject.name == MAIN else subject.name
    shield = "no shield" if subject.defense == NONE else display_defense(subject.defense)
    return f"{name}: {subject.classifier}, {shield}"


def ladder_table(summary: LadderSummary) -> "Table":
    """A line per rung, a column per subject; accuracies in percent, with their standard error."""
    try:
        from rich import box
        from rich.text import Text

        from vqshield.reports.folding import FoldingTable
    except ImportError as error:
        raise MissingExtraError("rich", "cli") from error
    table = FoldingTable(
        title=Text(summary.title),
        caption=f"attacks: {summary.plan.settings.ball.budget}; accuracy in %, ± standard error over images; "
        "calls: of the model, for an image, every draw counted; time: for all images together, training "
        "included",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
    )
    table.add_column("attacker", overflow="fold")
    table.add_column("needs", overflow="fold")
    for subject in summary.plan.subjects:
        table.add_column(Text("model" if subject.name == MAIN else subject.name), justify="right")
    table.add_column("calls", justify="right")
    table.add_column("time", justify="right")
    for line in ladder_lines(summary):
        table.add_row(
            Text(line.title),
            line.rung.needs,
            *(
                Text(figure_text(each), style="bold" if isinstance(each, LadderRow) else "dim")
                for each in line.figures
            ),
            line.cost_calls,
            "" if line.seconds is None else duration(line.seconds),
        )
    return table


def figure_text(figure: LadderRow | str) -> str:
    """A figure of the table, or that there is none."""
    if isinstance(figure, str):
        return "not run"
    return f"{percent(figure.mean)} ± {percent(figure.standard_error)}"


def ladder_notes(summary: LadderSummary) -> list[str]:
    """What must be said under the figures: who the subjects are, what was not run, and what was not
    audited.
    """
    lines = [] if summary.complete else ["The ladder is not finished: these are the figures so far."]
    lines += [f"WARNING: {warning}" for warning in summary.warnings]
    caveat = summary.plan.settings.ball.caveat
    lines += [] if caveat is None else [f"WARNING: {caveat}."]
    lines += [subject_title(each) for each in summary.plan.subjects]
    reasons: dict[tuple[str, str], list[str]] = {}
    for each in summary.plan.not_measured:
        reasons.setdefault((each.rung, each.reason), []).append(each.subject)
    lines += [
        f"{rung} not run for {', '.join(subjects)}: {reason}." for (rung, reason), subjects in reasons.items()
    ]
    lines += _tries_lines(summary)
    lines.append(
        f"Audit: {summary.audit}. Take every figure under attack for an upper bound of what is left."
    )
    return lines


def _tries_lines(summary: LadderSummary) -> list[str]:
    """How much is left where the attacker may send an image again, for subjects that are random."""
    last = len(summary.tries) - 1
    lines = []
    for subject in summary.plan.subjects:
        rows = [row for row in summary.rows if row.subject == subject.name]
        if last < 1 or all(row.tries[0] == row.tries[last] for row in rows):
            continue
        shown = [
            f"{_rung(row).title}{'' if row.calls is None else f' {row.calls:,}'} {percent(row.tries[last])}"
            for row in rows
        ]
        lines.append(
            f"{subject.name}, where an image may be sent {summary.tries[last]} times and one wrong answer is "
            f"enough: {', '.join(shown)} %."
        )
    return lines


def _rung(row: LadderRow) -> Rung:
    return next(rung for rung in RUNGS if rung.name == row.rung)


def ladder_markdown(summary: LadderSummary) -> str:
    """The table for a document."""
    subjects = [each.name for each in summary.plan.subjects]
    head = ["attacker", "knows", *subjects, "calls", "seconds"]
    lines = [" | ".join(head), "|".join(["---"] * 2 + ["---:"] * (len(subjects) + 2))]
    for line in ladder_lines(summary):
        figures = [figure_text(each) for each in line.figures]
        seconds = "" if line.seconds is None else f"{line.seconds:.0f}"
        lines.append(" | ".join([line.title, line.rung.knows, *figures, line.cost_calls, seconds]))
    return "\n".join(
        f"|{' ' if '---' not in each else ''}{each}{' ' if '---' not in each else ''}|" for each in lines
    )


def render_ladder(summary: LadderSummary) -> str:
    """The page: the table, the plot, attackers who try again, and what it was made with."""
    plot = ladder_plot(summary) if summary.rows else None
    return page(
        "ladder.html",
        title=summary.title,
        budget=summary.plan.settings.ball.budget,
        subjects=summary.plan.subjects,
        subject_title=subject_title,
        lines=ladder_lines(summary),
        is_row=lambda each: isinstance(each, LadderRow),
        collapsed=lambda row: _collapsed(summary, row),
        duration=duration,
        notes=ladder_notes(summary),
        tries=summary.tries,
        tried=_tried(summary),
        plot=plot,
        inline=_inline,
        facts=_facts(summary),
    )


def _collapsed(summary: LadderSummary, row: LadderRow) -> bool:
    """Whether less than half of the natural accuracy is left."""
    natural = summary.row("natural", row.subject)
    return natural is not None and row.mean < natural.mean / 2


def _tried(summary: LadderSummary) -> Sequence[tuple[str, LadderRow]]:
    """The rows of random subjects, with what they are called: there a further try may turn out otherwise."""
    if len(summary.tries) < 2:
        return []
    random = {row.subject for row in summary.rows if row.tries[0] != row.tries[-1]}
    return [
        (f"{row.subject}: {_rung(row).title}{'' if row.calls is None else f', {row.calls:,} calls'}", row)
        for row in summary.rows
        if row.subject in random
    ]


def _inline(svg: bytes) -> str:
    return f"data:image/svg+xml;base64,{base64.b64encode(svg).decode('ascii')}"


def _facts(summary: LadderSummary) -> list[tuple[str, str]]:
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
