"""Notices next to the values: what is missing, which data were replaced, which values were not audited."""

from vqshield_paper.reports.provenance import section_title
from vqshield_paper.reproduction.model import PartSummary, Summary

NO_AUDIT = "No audit was run: take robust accuracies as upper bounds."


def unfinished(summary: Summary) -> list[str]:
    """The notice before all values: that some are missing, and their parts."""
    if summary.complete:
        return []
    undone = [f"{section_title(part)} ({part.status})" for part in summary.parts if part.status != "complete"]
    return [
        "This experiment is not finished: these are the values measured so far."
        + (f" Unfinished: {'; '.join(undone)}." if undone else "")
    ]


def part_warnings(part: PartSummary) -> list[str]:
    """What a reader must know before the values of a part."""
    lines = []
    why = (part.why or "no reason was recorded").rstrip(".")
    if part.status == "not run":
        lines.append(f"Not run: {why}. The values are the paper's alone.")
    elif part.status != "complete":
        lines.append(f"Not finished: {why}.")
    if part.stand_in:
        lines.append(f"Stand-in: {part.stand_in.rstrip('.')}.")
    return lines


def part_audits(part: PartSummary) -> list[tuple[str, tuple[str, ...]]]:
    """A heading and its lines for every audit; one without lines where attacks went unaudited."""
    if not part.audits:
        return [(NO_AUDIT, ())] if any(column.level for column in part.columns) else []
    return [
        (f"{each.defense}: audit {'passed' if each.passed else 'failed'}", each.lines) for each in part.audits
    ]
