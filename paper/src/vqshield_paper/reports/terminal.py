"""A reproduced experiment in the terminal: tables and notices."""

from typing import TYPE_CHECKING

from vqshield_paper.reports.comparison import headline
from vqshield_paper.reports.grid import screen_table
from vqshield_paper.reports.notices import part_audits, part_warnings, unfinished
from vqshield_paper.reports.provenance import part_facts, section_title
from vqshield_paper.reproduction.model import Summary

if TYPE_CHECKING:
    from vqshield.reports.folding import FoldingTable


def terminal_tables(summary: Summary) -> "list[FoldingTable]":
    """A table for every part that has values: ours in bold, below them the paper's and the difference."""
    return [
        screen_table(part, title=f"{summary.id}: {section_title(part)}").terminal()
        for part in summary.parts
        if part.rows
    ]


def caveats(summary: Summary) -> list[str]:
    """Notices next to the tables in the terminal: the finding, what is missing, which data were replaced."""
    lines = [line for line in (*unfinished(summary), headline(summary)) if line]
    for part in summary.parts:
        facts = "; ".join(f"{name}: {text}" for name, text in part_facts(part))
        said = [*part_warnings(part), facts, *(heading for heading, _ in part_audits(part))]
        lines += [f"{section_title(part)}: {line}" for line in said if line]
    return lines + [f"Note on the paper: {note}" for note in summary.notes]
