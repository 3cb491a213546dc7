"""An evaluation's figures as a table in the terminal."""

from typing import TYPE_CHECKING

from vqshield.attacks import ball
from vqshield.core.display_names import NONE
from vqshield.core.errors import MissingExtraError
from vqshield.evaluation.study import NOT_RUN, EvaluationSummary
from vqshield.reports.numbers import percent

if TYPE_CHECKING:
    from rich.table import Table

_HEADINGS = ("accuracy", "s.e.", "vote", "worst", "N", "time")


def evaluation_table(summary: EvaluationSummary) -> "Table":
    """A section per defense, a line per attack; accuracies in percent."""
    try:
        from rich import box
        from rich.text import Text

        from vqshield.reports.folding import FoldingTable
    except ImportError as error:
        raise MissingExtraError("rich", "cli") from error
    runs = sorted({row.runs for row in summary.rows})
    manifest = summary.manifest
    budget = f"attacks: {ball(manifest.norm, manifest.eps).budget}; " if manifest.attacks else ""
    table = FoldingTable(
        title=Text(summary.title),
        caption=f"{budget}accuracy in %, mean ± standard deviation of {' / '.join(map(str, runs))} runs; "
        "s.e.: standard error of the mean over images; vote: the runs' most frequent answer; "
        "worst: right in every run",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),  # attacks have long names
        pad_edge=False,
    )
    table.add_column("attack", overflow="fold")
    table.add_column("level", overflow="fold")
    for heading in _HEADINGS:
        table.add_column(heading, justify="right")
    shown = None
    for row in summary.rows:
        if row.defense != shown:
            shown = row.defense
            table.add_section()
            table.add_row(Text(f"defense {shown}" if shown != NONE else "no defense", style="bold"))
        natural = row.attack == NONE
        table.add_row(
            Text("natural" if natural else row.attack),
            "" if natural else row.level,
            Text(f"{percent(row.mean)} ± {percent(row.std or 0.0)}", style="bold"),
            *(percent(each) for each in (row.standard_error, row.vote, row.worst)),
            str(row.n),
            _time(row.seconds),
        )
    return table


def caveats(summary: EvaluationSummary) -> list[str]:
    """What must be said under the figures, whatever they are."""
    lines = [] if summary.complete else ["The run is not finished: these are the figures so far."]
    if summary.warning:
        lines.append(f"WARNING: {summary.warning}")
    if any(row.audit for row in summary.rows):
        lines.append(
            f"Audit of the robust accuracies: {summary.audit}"
            + (". Until one passes, take them for upper bounds." if summary.audit == NOT_RUN else "")
        )
    return lines


def _time(seconds: float | None) -> str:
    if seconds is None:
        return ""
    return f"{seconds:.1f} s" if seconds < 60 else f"{seconds / 60:.1f} min"
