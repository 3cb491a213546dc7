"""A leaderboard: a page that sorts by a click, Markdown, a table in the terminal, and leaderboard.json."""

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from vqshield.auditing import read_audit
from vqshield.auditing.page import render_audit
from vqshield.core.errors import MissingExtraError
from vqshield.core.files import write_atomically, write_json
from vqshield.core.serialization import to_plain
from vqshield.core.settings import format_value
from vqshield.ladders.rungs import RUNGS
from vqshield.leaderboards.rows import BoardRow
from vqshield.leaderboards.study import RUNGS_SHOWN, BoardFigure, BoardResult, BoardSummary
from vqshield.reports.html import TEMPLATES, page
from vqshield.reports.markdown import escape_markdown
from vqshield.reports.numbers import percent

if TYPE_CHECKING:
    from rich.table import Table

PAGE, SUMMARY, MARKDOWN = "leaderboard.html", "leaderboard.json", "leaderboard.md"
_LOWEST = "lowest"
_WORDS = {
    "natural": "natural", "transfer": "transfer", "ignorant": "ignorant", "score": "by score",
    "decision": "by decision", "white-box": "white-box",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class BoardColumn:
    """A column of the page. first: which way the first click sorts it; sorted: whether the page is by it."""

    title: str
    note: str = ""
    first: str = "descending"
    sorted: bool = False


@dataclass(frozen=True, kw_only=True)
class BoardCell:
    """A cell. value: what it is sorted by, None where there is none; link, audit: files that it leads to;
    doubted: whether the audit says that the figure may be too high.
    """

    text: str
    value: float | str | None = None
    note: str = ""
    link: str | None = None
    audit: str | None = None
    doubted: bool = False


@dataclass(frozen=True, kw_only=True)
class BoardLine:
    """A row of the page."""

    result: BoardResult
    cells: tuple[BoardCell, ...]

    @property
    def row(self) -> BoardRow:
        """Whose it is."""
        return self.result.row

    @property
    def verdict(self) -> str:
        """Of the audit."""
        return _verdict(self.result)


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


def board_columns() -> list[BoardColumn]:
    """From left to right; the first is the defense itself."""
    return [
        BoardColumn(title="Defense", first="ascending"),
        *(BoardColumn(title=_WORDS[rung].capitalize(), note=_needs(rung)) for rung in RUNGS_SHOWN),
        BoardColumn(title="Lowest", note="of all attackers", sorted=True),
        BoardColumn(title="Audit", note="of white-box", first="ascending"),
        BoardColumn(title="Time", note="ms an image", first="ascending"),
    ]


def board_lines(summary: BoardSummary) -> list[BoardLine]:
    """The rows as the page shows them."""
    return [BoardLine(result=each, cells=tuple(_cells(each))) for each in ranked(summary)]


def _cells(result: BoardResult) -> list[BoardCell]:
    cells = [_cell(result, rung, result.figure(rung)) for rung in RUNGS_SHOWN]
    cells.append(_cell(result, _LOWEST, result.lowest))
    if result.audit is None:
        cells.append(BoardCell(text="not run yet"))
    else:
        held, flags = result.audit, len(result.audit.not_passed)
        cells.append(
            BoardCell(
                text=held.verdict,
                value=held.verdict,
                note=f"{flags} not passed, {held.n} images" if flags else f"{held.n} images",
                link=_audit_page(result),
            )
        )
    if result.cost is None:
        cells.append(BoardCell(text="not run yet"))
    else:
        cost = result.cost
        cells.append(
            BoardCell(
                text=f"{cost.model_ms:.3g}",
                value=cost.model_ms,
                note=f"defense {cost.defense_ms:.3g}",
                link=cost.records,
            )
        )
    return cells


def _cell(result: BoardResult, rung: str, figure: BoardFigure | None) -> BoardCell:
    if figure is None:
        return BoardCell(text=f"not run: {result.not_run.get(rung, 'not finished')}")
    note = f"± {percent(figure.standard_error)}"
    if rung == _LOWEST:
        note += f", {_WORDS[figure.rung]}"
    elif figure.calls is not None:
        note += f", {figure.calls:,} calls"
    attacked = figure.rung != "natural" and result.audit is not None
    return BoardCell(
        text=percent(figure.mean),
        value=figure.mean,
        note=note,
        link=figure.records,
        audit=_audit_page(result) if attacked else None,
        doubted=attacked and _is_doubted(result) and figure.mean > 0,
    )


def board_table(summary: BoardSummary) -> "Table":
    """For a terminal: accuracies in percent."""
    try:
        from rich import box
        from rich.text import Text

        from vqshield.reports.folding import FoldingTable
    except ImportError as error:
        raise MissingExtraError("rich", "cli") from error
    table = FoldingTable(
        title=Text(summary.title),
        caption=f"attacks: {summary.settings.ladder.ball.budget}; accuracy in %, ± standard error over "
        "images; time: ms an image",
        box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False,
    )  # fmt: skip
    table.add_column("defense", overflow="fold")
    for title in _titles():
        table.add_column(title, justify="right")
    for result in ranked(summary):
        table.add_row(Text(_called(result)), *map(Text, _values(result, links=False)))
    return table


def board_markdown(summary: BoardSummary, *, links: bool) -> str:
    """For a document; links: each figure leads to its records, from the board's folder."""
    head = ["defense", "classifier", "made by", *_titles()]
    lines = [" | ".join(head), "|".join(["---"] * 3 + ["---:"] * len(_titles()))]
    for result in ranked(summary):
        row = result.row
        words = [_called(result), row.classifier, row.made_by or ""]
        lines.append(" | ".join([*map(escape_markdown, words), *_values(result, links=links)]))
    table = "\n".join(
        f"|{line}|" if place == 1 else f"| {line} |" for place, line in enumerate(lines)
    )  # the second line is the rule
    return "\n\n".join([table, *map(escape_markdown, board_notes(summary))])


def _titles() -> list[str]:
    return [*(_WORDS[rung] for rung in RUNGS_SHOWN), _LOWEST, "audit", "ms"]


def _values(result: BoardResult, *, links: bool) -> list[str]:
    def linked(text: str, to: str) -> str:
        return f"[{text}]({quote(to.lstrip('/'))})" if links else text  # a file, never another host

    values = []
    for figure in (*map(result.figure, RUNGS_SHOWN), result.lowest):
        if figure is None:
            values.append("–")
        else:
            shown = f"{percent(figure.mean)} ± {percent(figure.standard_error)}"
            values.append(linked(shown, figure.records))
    values.append(linked(_verdict(result), result.audit.file) if result.audit else "–")
    values.append(linked(f"{result.cost.model_ms:.3g}", result.cost.records) if result.cost else "–")
    return values


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
    reasons: dict[tuple[str, str], list[str]] = {}
    for result in summary.rows:
        for rung, reason in result.not_run.items():
            reasons.setdefault((rung, reason), []).append(result.row.name)
    notes += [f"{rung} not run for {', '.join(rows)}: {reason}." for (rung, reason), rows in reasons.items()]
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
        eps=_eps(summary),
        columns=board_columns(),
        lines=board_lines(summary),
        notes=board_notes(summary),
        facts=_facts(summary),
        script=script,
        script_hash=f"sha256-{digest}",
    )


def _facts(summary: BoardSummary) -> Sequence[tuple[str, str]]:
    attackers, chosen = summary.settings.ladder, summary.settings
    audited = "all" if chosen.audit_images is None else f"the first {chosen.audit_images}"
    return [
        ("Budget ε", _eps(summary)),
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


def _eps(summary: BoardSummary) -> str:
    return f"{format_value(summary.settings.ladder.eps)} ({summary.settings.ladder.norm})"


def _needs(rung: str) -> str:
    needs = next(each.needs for each in RUNGS if each.name == rung)
    return "" if rung == "natural" else f"needs {needs}"


def _called(result: BoardResult) -> str:
    return f"{result.row.shown}{' (control)' if result.row.control else ''}"


def _verdict(result: BoardResult) -> str:
    return "not run" if result.audit is None else result.audit.verdict


def _is_doubted(result: BoardResult) -> bool:
    return result.audit is not None and result.audit.verdict == "failed"


def _audit_page(result: BoardResult) -> str:
    assert result.audit is not None
    return result.audit.file.removesuffix(".json") + ".html"
