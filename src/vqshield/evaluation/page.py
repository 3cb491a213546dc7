"""An evaluation's results as a table, and what a reader of them must know."""

from itertools import groupby

from vqshield.core.display_names import NONE
from vqshield.evaluation.summary import NOT_RUN, EvaluationSummary
from vqshield.reports.table import Column, Row, Section, Table
from vqshield.reports.text import UNFINISHED

_COLUMNS = (
    Column("attack", "attack"),
    Column("level", "level"),
    Column("accuracy", "accuracy", "percent", spread="std"),
    Column("standard_error", "s.e.", "percent"),
    Column("vote", "vote", "percent"),
    Column("worst", "worst", "percent"),
    Column("n", "N", "count", format="d"),
    Column("seconds", "time", "seconds"),
)


def evaluation_table(summary: EvaluationSummary) -> Table:
    """A section per defense, a line per attack."""
    manifest, rows = summary.manifest, list[Row | Section]()
    for defense, group in groupby(summary.rows, key=lambda row: row.defense):
        rows.append(Section(f"defense {defense}" if defense != NONE else "no defense"))
        for row in group:
            attack = ("natural", "") if row.attack == NONE else (row.attack, row.level)
            rows.append([*attack, row, row.standard_error, row.vote, row.worst, row.n, row.seconds])
    runs = sorted({row.runs for row in summary.rows})
    return Table(
        title=summary.title,
        columns=_COLUMNS,
        rows=rows,
        caption=(f"attacks: {manifest.ball.budget}; " if manifest.attacks else "")
        + f"accuracy in %, mean ± standard deviation of {' / '.join(map(str, runs))} runs; s.e.: standard "
        "error of the mean over images; vote: the runs' most frequent answer; worst: right in every run",
        missing="",
    )


def caveats(summary: EvaluationSummary) -> list[str]:
    """What a reader of the results must know."""
    lines = [] if summary.complete else [UNFINISHED]
    if summary.warning:
        lines.append(f"WARNING: {summary.warning}")
    if any(row.audit for row in summary.rows):
        lines.append(
            f"Audit of the robust accuracies: {summary.audit}"
            + (". Until one passes, take them for upper bounds." if summary.audit == NOT_RUN else "")
        )
    return lines
