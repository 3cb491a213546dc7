"""The demo's results: a table in the terminal, and a page with pictures."""

from collections.abc import Sequence

from vqshield.attacks import Linf
from vqshield.core.settings import format_settings, format_value
from vqshield.demo.study import DemoRow, DemoSummary, Threat
from vqshield.images.pictures import GalleryRow
from vqshield.models.draws import Accuracy
from vqshield.reports.html import page
from vqshield.reports.table import Cell, Column, Table
from vqshield.reports.text import duration

_TITLES: dict[Threat, str] = {
    "none": "Clean accuracy",
    "transfer": "Transfer attack",
    "ignorant": "Attack that ignores the shield",
    "score": "Score-based queries",
    "adaptive": "Adaptive attack through the shield",
}
"""The columns in reading order, from the weakest attacker to the strongest."""

FOR_WHOM = (
    "For: models behind an interface that answers queries, and images that were made to fool other models. "
    "Fine-tune the classifier behind the shield first (vqshield harden); the last row is one.",
    "Not for: models whose weights an attacker may have; the last column is theirs. Use adversarial training "
    "(vqshield harden --defense none --method adversarial) or a certificate (vqshield certify) there.",
)
"""What a reader should know before any number."""


def demo_table(summary: DemoSummary) -> Table:
    """One row per defense, one column per threat; accuracies with their standard error over images."""
    rows: dict[str, dict[Threat, DemoRow]] = {}
    for row in summary.rows:
        rows.setdefault(row.defense, {})[row.threat] = row
    attacks: dict[Threat, str] = {row.threat: row.attack for row in summary.rows if row.attack != "none"}
    return Table(
        title=summary.title,
        columns=[
            Column("defense", "Defense"),
            *(Column(key, title, "percent", help=attacks.get(key, "")) for key, title in _TITLES.items()),
        ],
        rows=[
            [
                Cell(defense, notes=_settings(next(iter(by_threat.values())))),
                *(_accuracy(by_threat.get(threat)) for threat in _TITLES),
            ]
            for defense, by_threat in rows.items()
        ],
        caption=f"accuracy in %, ± standard error over images, "
        f"N = {max((row.n for row in summary.rows), default=0)} images; attacks: "
        f"{Linf(summary.epsilon).budget}; red: less than half of the clean accuracy",
        missing="not run",
    )


def _settings(row: DemoRow) -> list[str]:
    return [format_settings(row.settings)] if row.settings else []


def _accuracy(row: DemoRow | None) -> Cell:
    if row is None:
        return Cell(None)
    robust = Accuracy(mean=row.robust, standard_error=row.standard_error, runs=row.runs, n=row.n)
    return Cell(robust, mark="low" if row.robust < row.natural / 2 else "")


def render_demo(summary: DemoSummary, gallery: Sequence[GalleryRow]) -> str:
    """The page: the table, what it means in sentences, the pictures, and what it was made with."""
    seeds = ", ".join(f"{name} {seed}" for name, seed in summary.seeds.items())
    return page(
        "demo.html",
        title=summary.title,
        for_whom=FOR_WHOM,
        table=demo_table(summary).html(bars=True),
        sentences=summary.sentences,
        gallery=gallery,
        facts=[
            ("Budget ε (L∞)", format_value(summary.epsilon)),
            ("Seeds", seeds),
            *((name, format_value(value)) for name, value in summary.machine.items()),
            ("Time", duration(summary.seconds)),
        ],
    )
