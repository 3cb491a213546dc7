"""An evaluation's results as a table and as a page, and what a reader of them must know."""

from itertools import groupby

from vqshield.core.display_names import NONE, display_name
from vqshield.core.settings import format_value
from vqshield.evaluation.gallery import Gallery
from vqshield.evaluation.plot import attacks_plot, classes_plot, curve_plot
from vqshield.evaluation.records import EvaluationManifest, EvaluationRecord
from vqshield.evaluation.summary import ALL, NOT_RUN, EvaluationSummary, per_class
from vqshield.reports.html import page
from vqshield.reports.table import Column, Row, Section, Table
from vqshield.reports.text import UNFINISHED, duration, percent
from vqshield.runs.study import Recorded

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
            level = "defense-unaware" if row.level == "ignorant" else row.level  # as records say it
            attack = ("clean", "") if row.attack == NONE else (row.attack, level)
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


def headline(summary: EvaluationSummary) -> str:
    """The main defense's clean accuracy, and the lowest under an attack."""
    clean, attacked = summary.row(summary.main), summary.row(summary.main, ALL)
    if clean is None:
        return summary.title
    name = display_name(summary.main) if summary.main != NONE else summary.manifest.classifier.described
    text = f"{name}: {percent(clean.mean)} % clean"
    if attacked is None:
        return text
    aware = any(not threat.ignores_defense for threat in summary.manifest.threats)
    attack = "the strongest attack" if aware or summary.main == NONE else "attacks that ignore the defense"
    return f"{text}, {percent(attacked.mean)} % under {attack}"


def render_evaluation(
    summary: EvaluationSummary,
    recorded: Recorded[EvaluationManifest, EvaluationRecord],
    gallery: Gallery | None = None,
) -> str:
    """The page: plots, pictures where the folder has some, then the numbers and settings, folded."""
    manifest, title = summary.manifest, headline(summary)
    classes = per_class(recorded, summary.main) if summary.complete else {}
    return page(
        "evaluation.html",
        title=title,
        lead=summary.title,
        plot=attacks_plot(summary, f"{title}. The values are in the table.") if summary.rows else None,
        curve=curve_plot(summary) if summary.curve else None,
        classes=classes_plot(classes, gallery.classes if gallery else ())
        if 1 < len(classes) <= manifest.data.images / 2
        else None,
        gallery=gallery.rows if gallery else (),
        attack=gallery and gallery.attack,
        table=evaluation_table(summary).html(dense=True),
        notes=caveats(summary),
        facts=[
            ("Data", f"{manifest.data.images} images of {manifest.data.name}"),
            ("Classifier", manifest.classifier.described),
            ("Defenses", ", ".join(defense.name for defense in manifest.defenses)),
            *(("Attack", attack.name) for attack in manifest.attacks),
            ("Budget", manifest.ball.budget),
            ("Samples per accuracy", str(manifest.runs)),
            ("Samples that choose attacks", str(manifest.selection)),
            ("Seed", str(manifest.seed)),
            *((name, format_value(value)) for name, value in manifest.machine.items()),
            ("Time", duration(summary.seconds)),
        ],
    )
