"""A leaderboard as a page that sorts by a click, Markdown, a table in the terminal, and leaderboard.json."""

import base64
import hashlib
from pathlib import Path

from vqshield.auditing.page import render_audit
from vqshield.core.files import write_atomically, write_json
from vqshield.ladders.page import not_run_lines
from vqshield.ladders.rungs import RUNGS, Rung
from vqshield.ladders.study import LadderRow, NotMeasured
from vqshield.leaderboards.study import RUNGS_SHOWN, BoardResult, BoardSummary
from vqshield.reports.html import TEMPLATES, page
from vqshield.reports.table import Cell, Column, Note, Table
from vqshield.reports.text import escape_markdown, percent

PAGE, SUMMARY, MARKDOWN = "leaderboard.html", "leaderboard.json", "leaderboard.md"
_WORDS = {"score": "by score", "decision": "by decision"}


def write_board(out: Path, summary: BoardSummary) -> None:
    """The page, the Markdown, the summary, and a page for each audit, in the board's folder."""
    for result in summary.rows:
        if result.audit is not None:
            write_atomically(out / _audit_page(result), render_audit(result.audit).encode())
    write_json(out / SUMMARY, summary.plain())
    markdown = f"{board_markdown(summary, links=True)}\n\nAttacks: {summary.settings.ladder.ball.budget}.\n"
    write_atomically(out / MARKDOWN, markdown.encode())
    write_atomically(out / PAGE, render_board(summary).encode())


def _rank(result: BoardResult) -> tuple[bool, bool, float]:
    """From the highest lowest accuracy on, then rows whose audit failed, then rows without an accuracy."""
    lowest = 0.0 if result.lowest is None else result.lowest.mean
    return result.lowest is None, _is_doubted(result), -lowest


def board_table(summary: BoardSummary) -> Table:
    """The rows from the best to the worst; accuracies with their standard error over images."""
    return Table(
        title=summary.title,
        columns=[
            Column("defense", "defense"),
            Column("classifier", "classifier"),
            Column("made_by", "made by"),
            *(
                Column(rung.name, _WORDS.get(rung.name, rung.name), "percent", help=_needs(rung))
                for rung in RUNGS
                if rung.name in RUNGS_SHOWN
            ),
            Column("lowest", "lowest", "percent", help="of all attackers"),
            Column("audit", "audit", help="of white-box"),
            Column("ms", "ms", "number", help="an image", ascending=True),
        ],
        rows=[_cells(result) for result in sorted(summary.rows, key=_rank)],
        caption=f"attacks: {summary.settings.ladder.ball.budget}; accuracy in %, ± standard error over "
        "images; ms: of the model, for an image; struck out: the audit failed, so the accuracy may be lower",
    )


def _needs(rung: Rung) -> str:
    return "" if rung.name == "natural" else f"needs {rung.needs}"


def _cells(result: BoardResult) -> list[Cell]:
    row, audit, cost = result.row, result.audit, result.cost
    unknown = Cell(None, notes=("not run yet",))
    credits = [Note(text) for text in (row.classifier, row.made_by) if text]
    if row.paper:
        credits.append(Note(row.paper, url=row.paper if row.paper.startswith("https://") else None))
    audited = timed = unknown
    if audit is not None:
        flags = f"{len(audit.not_passed)} not passed, " if audit.not_passed else ""
        audited = Cell(audit.verdict, notes=(f"{flags}{audit.n} images",), file=_audit_page(result))
    if cost is not None:
        timed = Cell(cost.model_ms, notes=(f"defense {cost.defense_ms:.3g}",), file=result.files["cost"])
    return [
        Cell(row.shown, badges=("control",) if row.control else (), notes=credits),
        Cell(row.classifier),
        Cell(row.made_by or ""),
        *(_accuracy(result, result.figure(rung), result.not_run.get(rung)) for rung in RUNGS_SHOWN),
        _accuracy(result, result.lowest, lowest=True),
        audited,
        timed,
    ]


def _accuracy(
    result: BoardResult, figure: LadderRow | None, why: str | None = None, *, lowest: bool = False
) -> Cell:
    """An accuracy with a link to its records, and one to the audit if it is under attack."""
    if figure is None:
        return Cell(None, notes=(why or "not finished",))
    notes = []
    if lowest:
        notes.append(Note(_WORDS.get(figure.rung, figure.rung)))
    elif figure.calls is not None:
        notes.append(Note(f"{figure.calls:,} calls"))
    struck = figure.rung != "natural" and _is_doubted(result) and figure.mean > 0
    if figure.rung != "natural" and result.audit is not None:
        notes.append(Note(f"audit {result.audit.verdict}", file=_audit_page(result)))
    return Cell(figure, notes=notes, mark="struck" if struck else "", file=result.records(figure))


def _is_doubted(result: BoardResult) -> bool:
    return result.audit is not None and result.audit.verdict == "failed"


def _audit_page(result: BoardResult) -> str:
    return result.files["audit"].removesuffix(".json") + ".html"


def board_markdown(summary: BoardSummary, *, links: bool) -> str:
    """For a document; links: each result leads to its records, from the board's folder."""
    table = board_table(summary).markdown(files=links)
    return "\n\n".join([table, *map(escape_markdown, board_notes(summary))])


def board_notes(summary: BoardSummary) -> list[str]:
    """The lines below the table."""
    notes = [] if summary.complete else ["The board is not finished: these are the results so far."]
    caveat = summary.settings.ladder.ball.caveat
    notes += [] if caveat is None else [f"WARNING: {caveat}."]
    for result in summary.rows:
        warnings = () if result.ladder is None else result.ladder.warnings
        notes += [f"WARNING: {result.row.name}: {warning}." for warning in warnings]
        audit = result.audit
        if audit is not None and audit.verdict in ("failed", "suspicious"):
            flags = ", ".join(f"{name} {outcome}" for name, outcome in audit.not_passed.items())
            notes.append(
                f"{result.row.name}: its audit {'failed' if audit.verdict == 'failed' else 'is suspicious'} "
                f"({flags}). Accuracy of {audit.n} images: {percent(audit.reported.mean)} % under the suite, "
                f"{percent(audit.lowest.mean)} % under the strongest attack of the audit."
            )
    notes += not_run_lines(
        NotMeasured(subject=result.row.name, rung=rung, reason=reason)
        for result in summary.rows
        for rung, reason in result.not_run.items()
    )
    notes.append(
        "Every accuracy under attack is an upper bound. An audit is undecided if no check failed but some "
        "were not run, or had too few images."
    )
    return notes


def render_board(summary: BoardSummary) -> str:
    """The page: one file, whose only script sorts the table."""
    script = (TEMPLATES / "sort.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii")
    attackers, audited = summary.settings.ladder, summary.settings.audit_images
    return page(
        "leaderboard.html",
        title=summary.title,
        table=board_table(summary).without("classifier", "made_by").html(sorted_by="lowest"),
        notes=board_notes(summary),
        facts=[
            ("Budget", attackers.ball.budget),
            ("Images", f"{summary.images} of {summary.data}"),
            ("Transfer attack", f"{attackers.transfer} on {', '.join(summary.sources) or 'no source'}"),
            ("Ignorant attack", attackers.ignorant),
            (
                "Query attacks",
                f"square and rays, {attackers.calls[-1]:,} calls per image, "
                f"{' and '.join(map(str, attackers.draws))} draws per query",
            ),
            ("White-box attack", attackers.suite),
            (
                "Audit",
                f"of {'all' if audited is None else f'the first {audited}'} images, "
                f"{summary.settings.audit.runs} draws",
            ),
            ("Draws behind an accuracy", str(attackers.runs)),
            ("Seed", str(attackers.seed)),
            *summary.machine.items(),
        ],
        script=script,
        script_hash=f"sha256-{digest}",
    )
