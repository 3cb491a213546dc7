"""A leaderboard as a page that sorts by a click, Markdown, a table in the terminal, and leaderboard.json."""

import base64
import hashlib
import json
import shlex
from pathlib import Path
from statistics import mode

from vqshield.auditing.page import render_audit
from vqshield.core.files import write_atomically, write_json
from vqshield.core.serialization import to_plain
from vqshield.core.settings import format_value
from vqshield.ladders.page import not_run_lines, render_ladder, settings_facts
from vqshield.ladders.rungs import RUNGS, Rung
from vqshield.ladders.study import LadderRow, NotMeasured
from vqshield.leaderboards.study import RUNGS_SHOWN, BoardResult, BoardSummary
from vqshield.reports.html import TEMPLATES, page
from vqshield.reports.table import Cell, Column, Mark, Note, Table
from vqshield.reports.text import escape_markdown, percent

PAGE, SUMMARY, MARKDOWN = "leaderboard.html", "leaderboard.json", "leaderboard.md"
_TITLES: dict[str, str] = {rung.name: rung.name for rung in RUNGS} | {
    "natural": "clean", "ignorant": "defense-unaware", "score": "score queries",
    "decision": "decision queries",
}  # fmt: skip
_VERDICTS: dict[str | None, tuple[str, Mark]] = {
    "passed": ("credible", "good"), "failed": ("doubtful", "bad"), "suspicious": ("doubtful", "bad"),
    "undecided": ("undecided", "unsure"), None: ("not audited", ""),
}  # fmt: skip


def write_board(out: Path, summary: BoardSummary) -> None:
    """The page, the Markdown, the summary, and a page for each row and each audit, in the board's folder."""
    for result in summary.rows:
        if result.audit is not None:
            write_atomically(out / _audit_page(result), render_audit(result.audit).encode())
        if result.ladder is not None:
            write_atomically(out / _row_page(result), render_row(summary, result).encode())
    write_json(out / SUMMARY, summary.plain())
    markdown = f"{board_markdown(summary, links=True)}\n\nAttacks: {summary.settings.ladder.ball.budget}.\n"
    write_atomically(out / MARKDOWN, markdown.encode())
    write_atomically(out / PAGE, render_board(summary).encode())


def _row_page(result: BoardResult) -> str:
    return f"rows/{result.row.name}/row.html"


def _audit_page(result: BoardResult) -> str:
    return f"rows/{result.row.name}/audit/audit.html"


def _ranked(summary: BoardSummary) -> list[BoardResult]:
    """From the highest lowest accuracy on, then rows whose audit failed, then rows without an accuracy."""

    def rank(result: BoardResult) -> tuple[bool, bool, float]:
        lowest = 0.0 if result.lowest is None else result.lowest.mean
        return result.lowest is None, _is_doubted(result), -lowest

    return sorted(summary.rows, key=rank)


def _is_doubted(result: BoardResult) -> bool:
    return result.audit is not None and result.audit.verdict == "failed"


def board_table(summary: BoardSummary) -> Table:
    """The rows from the best to the worst; accuracies with their standard error over images."""
    return Table(
        title=summary.title,
        columns=[
            Column("defense", "defense"),
            Column("classifier", "classifier"),
            Column("made_by", "made by"),
            *(
                Column(rung.name, _TITLES[rung.name], "percent", help=_needs(rung))
                for rung in RUNGS
                if rung.name in RUNGS_SHOWN
            ),
            Column("lowest", "strongest", "percent", help="of all attackers"),
            Column("audit", "audit", help="of white-box"),
            Column("ms", "ms", "number", help="per image", ascending=True),
        ],
        rows=[_cells(summary, result) for result in _ranked(summary)],
        caption=f"attacks: {summary.settings.ladder.ball.budget}; accuracy in %, ± standard error over "
        f"{summary.images} images; queries: {summary.settings.ladder.calls[-1]:,} calls per image; ms: of "
        "the model; struck out: the audit failed, so the accuracy may be lower",
    )


def _needs(rung: Rung) -> str:
    return "" if rung.name == "natural" else f"needs {rung.needs}"


def _cells(summary: BoardSummary, result: BoardResult) -> list[Cell]:
    row, audit = result.row, result.audit
    verdict, mark = _VERDICTS[audit.verdict if audit else None]
    return [
        Cell(row.shown, badges=_badges(summary, result), file=_row_page(result) if result.ladder else None),
        Cell(row.classifier),
        Cell(row.made_by or ""),
        *(_accuracy(result, result.figure(rung), result.not_run.get(rung)) for rung in RUNGS_SHOWN),
        _accuracy(result, result.lowest),
        Cell(verdict, mark=mark, file=_audit_page(result) if audit else None),
        Cell(result.cost.model_ms) if result.cost else Cell(None, notes=("not run yet",)),
    ]


def _badges(summary: BoardSummary, result: BoardResult) -> list[str]:
    """What a row is marked with, and can be hidden by."""
    usual = mode(each.row.classifier for each in summary.rows)
    own = result.row.classifier != usual
    return ["baseline"] * result.row.control + ["own classifier"] * own


def _accuracy(result: BoardResult, row: LadderRow | None, why: str | None = None) -> Cell:
    """An accuracy, struck out where the audit failed."""
    if row is None:
        return Cell(None, notes=(why or "not run yet",))
    struck = row.rung != "natural" and _is_doubted(result) and row.mean > 0
    return Cell(row, mark="struck" if struck else "")


def board_markdown(summary: BoardSummary, *, links: bool) -> str:
    """For a document; links: each row leads to its page and its audit's, from the board's folder."""
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
    """The page: one file, whose only script sorts and filters."""
    script = (TEMPLATES / "sort.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii")
    table, audited = board_table(summary).without("classifier", "made_by"), summary.settings.audit_images
    return page(
        "leaderboard.html",
        title=summary.title,
        table=table.html(sorted_by="lowest", bars=True, dense=True),
        results=[(result, _badges(summary, result), _row_page(result)) for result in _ranked(summary)],
        floor=int(10 * min((row.mean for each in summary.rows for row in each.figures[:1]), default=0)) * 10,
        attackers={"lowest": "strongest", **{rung: _TITLES[rung] for rung in RUNGS_SHOWN[1:]}},
        notes=board_notes(summary),
        facts=[
            ("Images", f"{summary.images} of {summary.data}"),
            ("Transfer sources", ", ".join(summary.sources) or "none"),
            ("Audit", f"of {audited or 'all'} images, {summary.settings.audit.runs} samples"),
            *settings_facts(summary.settings.ladder),
            *summary.machine.items(),
        ],
        script=script,
        script_hash=f"sha256-{digest}",
    )


def render_row(summary: BoardSummary, result: BoardResult) -> str:
    """The page of one row: its ladder, how to measure it, and where its records are."""
    assert result.ladder is not None
    row, attackers, audit = result.row, summary.settings.ladder, result.audit
    options = {
        "data": summary.data, "limit": summary.images, "norm": attackers.norm,
        "eps": format_value(attackers.eps), "calls": attackers.calls[-1], "samples": attackers.runs,
        "attack": attackers.suite, "precision": attackers.query_precision, "seed": attackers.seed,
        "batch": attackers.batch, "audit-limit": summary.settings.audit_images,
    }  # fmt: skip
    given = [(name, value) for name, value in options.items() if value is not None]
    given += [("source", source) for source in summary.sources]
    command = ["vqshield", "leaderboard", f"{row.name}.toml"]
    command += [word for name, value in given for word in (f"--{name}", str(value))]
    here = f"rows/{row.name}/"
    about = {
        "row": row,
        "toml": [
            f"{name} = {json.dumps(value, ensure_ascii=False)}" for name, value in to_plain(row).items()
        ],
        "command": shlex.join([*command, "--out", "BOARD"]),
        "cost": result.cost,
        "device": result.device,
        "verdict": _VERDICTS[audit.verdict if audit else None][0],
        "audit": audit and _audit_page(result).removeprefix(here),
        "files": {name: Note(name, file=file.removeprefix(here)).href for name, file in result.files.items()},
    }
    return render_ladder(result.ladder, row=about)
