"""An evaluation's figures as a table in the terminal."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from vqshield.errors import MissingExtraError
from vqshield.reports.pivot import percent

if TYPE_CHECKING:
    from rich.table import Table

NATURAL = "none"
FIGURES = ("accuracy", "s.e.", "vote", "worst", "N", "time")


def evaluation_table(summary: Mapping[str, Any]) -> "Table":
    """A section per defense, a line per attack; accuracies in percent."""
    try:
        from rich import box
        from rich.text import Text

        from vqshield.reports.folding import FoldingTable
    except ImportError as error:
        raise MissingExtraError("rich", "cli") from error
    runs = sorted({row["runs"] for row in summary["rows"]})
    table = FoldingTable(
        title=Text(str(summary["title"])),
        caption=f"accuracy in %, mean ± standard deviation of {' / '.join(map(str, runs))} runs; "
        "s.e.: standard error of the mean over images; vote: the runs' most frequent answer; "
        "worst: right in every run",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),  # room for what was typed: attacks have long names
        pad_edge=False,
    )
    table.add_column("attack", overflow="fold")
    table.add_column("level", overflow="fold")
    for heading in FIGURES:
        table.add_column(heading, justify="right")
    shown = None
    for row in summary["rows"]:
        if row["defense"] != shown:
            shown = row["defense"]
            table.add_section()
            table.add_row(Text(f"defense {shown}" if shown != NATURAL else "no defense", style="bold"))
        natural = row["attack"] == NATURAL
        table.add_row(
            Text("natural" if natural else row["attack"]),
            "" if natural else row["level"],
            Text(f"{percent(row['mean'])} ± {percent(row['std'])}", style="bold"),
            *(percent(row[name]) for name in ("standard_error", "vote", "worst")),
            str(row["n"]),
            _time(row["seconds"]),
        )
    return table


def caveats(summary: Mapping[str, Any]) -> list[str]:
    """What must be said under the figures, whatever they are."""
    lines = [] if summary["complete"] else ["The run is not finished: these are the figures so far."]
    if summary["warning"]:
        lines.append(f"WARNING: {summary['warning']}")
    if any("audit" in row for row in summary["rows"]):
        lines.append(
            f"Audit of the robust accuracies: {summary['audit']}"
            + (". Until one passes, take them for upper bounds." if summary["audit"] == "not run" else "")
        )
    return lines


def _time(seconds: float | None) -> str:
    if seconds is None:
        return ""
    return f"{seconds:.1f} s" if seconds < 60 else f"{seconds / 60:.1f} min"
