"""The demo's results: a table in the terminal, and a page with pictures."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vqshield.attacks import Linf
from vqshield.core.errors import InvalidInputError, MissingExtraError
from vqshield.core.settings import format_settings, format_value
from vqshield.demo.gallery import GalleryRow
from vqshield.demo.study import DemoRow, DemoSummary
from vqshield.reports.html import page
from vqshield.reports.numbers import duration, percent

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

NOT_RUN = "not run"

# The columns in reading order, from the weakest attacker to the strongest.
THREATS = {
    "none": "Natural accuracy",
    "transfer": "Images made for another network",
    "ignorant": "Attack that ignores the shield",
    "score": "Queries by score",
    "ste": "Attack through the shield (STE)",
    "eot": "Attack through the shield and its noise (STE + EOT)",
    "adaptive": "Attack made for the shield",
}

FOR_WHOM = (
    "For: models behind an interface that answers queries, and images that were made to fool other models. "
    "Fine-tune the classifier behind the shield first (vqshield harden); the last row is one.",
    "Not for: anybody whose weights an attacker may have; the last column is theirs. Use adversarial "
    "training (vqshield harden --defense none --method adversarial) or a certificate (vqshield certify) "
    "there.",
)
"""What a reader should know before any figure."""


@dataclass(frozen=True)
class DemoCell:
    """One accuracy as a fraction, its standard error over images (None: unknown), the number of images."""

    mean: float
    standard_error: float | None
    n: int
    attack: str
    collapsed: bool
    """Less than half of the natural accuracy is left."""


@dataclass(frozen=True)
class DemoLine:
    """One defense with its settings; a threat that was not run has no cell."""

    defense: str
    settings: str
    cells: dict[str, DemoCell]


@dataclass(frozen=True)
class Pivot:
    """The table: the threats that occur, in reading order, and the defenses in order of appearance."""

    threats: tuple[str, ...]
    lines: tuple[DemoLine, ...]


def pivot(rows: Iterable[DemoRow]) -> Pivot:
    """Arrange the rows; of several attacks under one threat the strongest counts, as for an attacker."""
    lines: dict[tuple[str, str], dict[str, DemoCell]] = {}
    for row in rows:
        cells = lines.setdefault((row.defense, format_settings(row.settings)), {})
        if row.threat not in THREATS:
            raise InvalidInputError(f"threat={row.threat!r} is unknown; valid are {', '.join(THREATS)}")
        if row.threat == "none":
            cells["none"] = _cell(row, row.natural, error=row.standard_error, attack=row.attack)
            continue
        # A row of an attack knows the natural accuracy too, but its standard error is the attacked one's.
        cells.setdefault("none", _cell(row, row.natural, error=None, attack=""))
        under = _cell(row, row.robust, error=row.standard_error, attack=row.attack)
        if row.threat not in cells or under.mean < cells[row.threat].mean:
            cells[row.threat] = under
    occurring = {threat for cells in lines.values() for threat in cells}
    return Pivot(
        threats=tuple(threat for threat in THREATS if threat in occurring),
        lines=tuple(DemoLine(defense, settings, cells) for (defense, settings), cells in lines.items()),
    )


def _cell(row: DemoRow, mean: float, *, error: float | None, attack: str) -> DemoCell:
    return DemoCell(mean=mean, standard_error=error, n=row.n, attack=attack, collapsed=mean < row.natural / 2)


def demo_table(summary: DemoSummary) -> "Table":
    """One line per defense, one column per threat; mean accuracy in percent ± standard error over images."""
    try:
        from rich import box
        from rich.text import Text

        from vqshield.reports.folding import FoldingTable
    except ImportError as error:
        raise MissingExtraError("rich", "cli") from error
    figures = pivot(summary.rows)
    table = FoldingTable(
        title=Text(summary.title),
        caption=f"accuracy in %, ± standard error over images, "
        f"N = {max((row.n for row in summary.rows), default=0)} images; attacks: "
        f"{Linf(summary.epsilon).budget}",
        box=box.SIMPLE_HEAD,
        pad_edge=False,  # five figures fit into 80 characters so
    )
    table.add_column("Defense", overflow="fold")
    for threat in figures.threats:
        table.add_column(THREATS[threat], justify="right", max_width=20)
    names = [line.defense for line in figures.lines]
    for line in figures.lines:
        name = Text(line.defense, style="bold")
        if (
            names.count(line.defense) > 1
        ):  # only then: a terminal is narrow, and the other reports name them all
            name.append(f"\n{line.settings}", style="not bold dim")
        table.add_row(name, *(_figure(line.cells.get(threat)) for threat in figures.threats))
    return table


def _figure(cell: DemoCell | None) -> "Text":
    from rich.text import Text

    if cell is None:
        return Text(NOT_RUN, style="dim")
    text = Text(percent(cell.mean), style="bold red" if cell.collapsed else "bold")
    if cell.standard_error is not None:
        text.append(f" ± {percent(cell.standard_error)}", style="not bold dim")
    return text


def render_demo(summary: DemoSummary, gallery: Sequence[GalleryRow]) -> str:
    """The page: the table, what it means in sentences, the pictures, and what it was made with."""
    table = pivot(summary.rows)
    return page(
        "demo.html",
        title=summary.title,
        for_whom=FOR_WHOM,
        figures=table,
        threat_titles=THREATS,
        attacks=_attacks_by_threat(table),
        sentences=summary.sentences,
        gallery=gallery,
        epsilon=format_value(summary.epsilon),
        facts=_facts(summary),
    )


def _attacks_by_threat(table: Pivot) -> dict[str, str]:
    """The attacks behind each column, as a note under its heading."""
    names = {
        threat: {line.cells[threat].attack: None for line in table.lines if threat in line.cells}
        for threat in table.threats
        if threat != "none"
    }
    return {threat: ", ".join(filter(None, attacks)) for threat, attacks in names.items()}


def _facts(summary: DemoSummary) -> list[tuple[str, str]]:
    """What a reader needs to run the demo again, as pairs of name and text."""
    seeds = ", ".join(f"{name} {seed}" for name, seed in summary.seeds.items())
    machine = [(name, format_value(value)) for name, value in summary.machine.items()]
    return [
        ("Budget ε (L∞)", format_value(summary.epsilon)),
        ("Seeds", seeds),
        *machine,
        ("Time", duration(summary.seconds)),
    ]
