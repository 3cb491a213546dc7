"""A leaderboard: a page that sorts by a click, Markdown, a table in the terminal, and leaderboard.json."""

import base64
import hashlib
from collections.abc import Sequence
from pathlib import Path

from vqshield.auditing import read_audit
from vqshield.auditing.page import render_audit
from vqshield.core.files import write_atomically, write_json
from vqshield.core.serialization import to_plain
from vqshield.ladders.page import not_run_lines
from vqshield.ladders.rungs import RUNGS, RungName
from vqshield.leaderboards.rows import BoardRow
from vqshield.leaderboards.study import RUNGS_SHOWN, BoardFigure, BoardResult, BoardSummary
from vqshield.reports.html import TEMPLATES, page
from vqshield.reports.table import Cell, Column, Note, Table
from vqshield.reports.text import escape_markdown, percent

PAGE, SUMMARY, MARKDOWN = "leaderboard.html", "leaderboard.json", "leaderboard.md"
_WORDS: dict[RungName, str] = {
    "natural": "natural", "transfer": "transfer", "ignorant": "ignorant", "score": "by score",
    "decision": "by decision", "white-box": "white-box",
}  # fmt: skip


def write_board(out: Path, summary: BoardSummary) -> None:
    """The page, the Markdown, the summary, and a page for each audit, in the board's folder."""
    for result in summary.rows:
        if result.audit is not None:
            report = render_audit(read_audit(out / result.audit.file))
            write_atomically(out / _audit_page(result), report.encode())
    write_json(out / SUMMARY, to_plain(summary))
    markdown = f"{board_markdown(summary, links=True)}\n\nAttacks: {summary.settings.ladder.ball.budget}.\n"
    write_atomically(out / MARKDOWN, markdown.encode())
    write_atomically(out / PAGE, render_board(summary).encode())


def ranked(summary: BoardSummary) -> list[BoardResult]:
    """The rows from the best to the worst by the lowest figure; those whose audit failed, and those without
    a figure, after all others.
    """
    return sorted(
        summary.rows,
        key=lambda each: (
            each.lowest is None,
            _is_doubted(each),
            0.0 if each.lowest is None else -each.lowest.mean,
        ),
    )


def board_table(summary: BoardSummary) -> Table:
    """The rows from the best to the worst; accuracies with their standard error over images."""
    return Table(
        title=summary.title,
        columns=[
            Column("defense", "defense"),
            Column("classifier", "classifier"),
            Column("made_by", "made by"),
            *(Column(rung, _WORDS[rung], "percent", help=_needs(rung)) for rung in RUNGS_SHOWN),
            Column("lowest", "lowest", "percent", help="of all attackers"),
            Column("audit", "audit", help="of white-box"),
            Column("ms", "ms", "number", help="an image", ascending=True),
        ],
        rows=[_cells(result) for result in ranked(summary)],
        caption=f"attacks: {summary.settings.ladder.ball.budget}; accuracy in %, ± standard error over "
        "images; ms: of the model, for an image; struck out: the audit failed, so the accuracy may be lower",
    )


def _cells(result: BoardResult) -> list[Cell]:
    row, audit, cost = result.row, result.audit, result.cost
    flags = f"{len(audit.not_passed)} not passed, " if audit and audit.not_passed else ""
    return [
        Cell(row.shown, badge="control" if row.control else "", notes=tuple(_credits(row))),
        Cell(row.classifier),
        Cell(row.made_by or ""),
        *(_cell(result, result.figure(rung), result.not_run.get(rung)) for rung in RUNGS_SHOWN),
        _cell(result, result.lowest, lowest=True),
        Cell(None, notes=("not run yet",))
        if audit is None
        else Cell(audit.verdict, notes=(f"{flags}{audit.n} images",), file=_audit_page(result)),
        Cell(None, notes=("not run yet",))
        if cost is None
        else Cell(cost.model_ms, notes=(f"defense {cost.defense_ms:.3g}",), file=cost.records),
    ]


def _credits(row: BoardRow) -> list[Note]:
    """Whose a row is."""
    notes = [Note(each) for each in (row.classifier, row.made_by) if each]
    if row.paper:
        notes.append(Note(row.paper, url=row.paper if row.paper.startswith("https://") else None))
    return notes


def _cell(
    result: BoardResult, figure: BoardFigure | None, why: str | None = None, *, lowest: bool = False
) -> Cell:
    """An accuracy that leads to its records, and to the audit where it is one under attack."""
    if figure is None:
        return Cell(None, notes=(why or "not finished",))
    notes = []
    if lowest:
        notes.append(Note(_WORDS[figure.rung]))
    elif figure.calls is not None:
        notes.append(Note(f"{figure.calls:,} calls"))
    attacked = figure.rung != "natural" and result.audit is not None
    if attacked:
        notes.append(Note(f"audit {_verdict(result)}", file=_audit_page(result)))
    struck = attacked and _is_doubted(result) and figure.mean > 0
    return Cell(figure, notes=notes, mark="struck" if struck else "", file=figure.records)


def board_markdown(summary: BoardSummary, *, links: bool) -> str:
    """For a document; links: each result leads to its records, from the board's folder."""
    table = board_table(summary).markdown(files=links)
    return "\n\n".join([table, *map(escape_markdown, board_notes(summary))])


def board_notes(summary: BoardSummary) -> list[str]:
    """What must be said under the figures."""
    notes = [] if summary.complete else ["The board is not finished: these are the figures so far."]
    caveat = summary.settings.ladder.ball.caveat
    notes += [] if caveat is None else [f"WARNING: {caveat}."]
    for result in summary.rows:
        audit = result.audit
        if audit is not None and audit.verdict in ("failed", "suspicious"):
            told = ", ".join(f"{name} {outcome}" for name, outcome in audit.not_passed.items())
            notes.append(
                f"{result.row.name}: its audit {'failed' if audit.verdict == 'failed' else 'is suspicious'} "
                f"({told}). On {audit.n} images the suite left {percent(audit.reported)} %, the strongest "
                f"attack of the audit {percent(audit.lowest)} %."
            )
    notes += not_run_lines(
        (rung, reason, result.row.name) for result in summary.rows for rung, reason in result.not_run.items()
    )
    notes.append(
        "Every figure under attack is an upper bound of what is left. An audit is undecided where no check "
        "failed but some were not run, or saw too few images."
    )
    return notes


def render_board(summary: BoardSummary) -> str:
    """The page: one file, whose only script sorts the table."""
    script = (TEMPLATES / "sort.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii")
    return page(
        "leaderboard.html",
        title=summary.title,
        table=board_table(summary).without("classifier", "made_by").html(sorted_by="lowest"),
        notes=board_notes(summary),
        facts=_facts(summary),
        script=script,
        script_hash=f"sha256-{digest}",
    )


def _facts(summary: BoardSummary) -> Sequence[tuple[str, str]]:
    attackers, chosen = summary.settings.ladder, summary.settings
    audited = "all" if chosen.audit_images is None else f"the first {chosen.audit_images}"
    return [
        ("Budget", attackers.ball.budget),
        ("Images", f"{summary.images} of {summary.data}"),
        ("Transfer attack", f"{attackers.transfer} on {', '.join(summary.sources) or 'no source'}"),
        ("Ignorant attack", attackers.ignorant),
        (
            "Query attacks",
            f"square and rays, {attackers.calls[-1]:,} calls an image, with "
            f"{' and '.join(map(str, attackers.draws))} draws a query",
        ),
        ("White-box attack", attackers.suite),
        ("Audit", f"of {audited} images, {chosen.audit.runs} draws"),
        ("Draws behind a figure", str(attackers.runs)),
        ("Seed", str(attackers.seed)),
        *summary.machine.items(),
    ]


def _needs(rung: RungName) -> str:
    needs = next(each.needs for each in RUNGS if each.name == rung)
    return "" if rung == "natural" else f"needs {needs}"


def _verdict(result: BoardResult) -> str:
    return "not run" if result.audit is None else result.audit.verdict


def _is_doubted(result: BoardResult) -> bool:
    return result.audit is not None and result.audit.verdict == "failed"


def _audit_page(result: BoardResult) -> str:
    assert result.audit is not None
    return result.audit.file.removesuffix(".json") + ".html"
