"""A reproduced experiment as GitHub Markdown and as LaTeX tables."""

import re
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

from vqshield.reports.reproduction_facts import (
    headline,
    part_audit,
    part_facts,
    part_warnings,
    summary_facts,
    warnings,
)
from vqshield.reports.reproduction_figures import Cell, Grid, grid

_NAMES = {"paper": "paper", "ours": "ours", "difference": "Δ"}
_ENTITIES = {"<": "&lt;", ">": "&gt;", "&": "&amp;"}
_LATEX = {
    **{char: f"\\{char}" for char in "&%$#_{}"},
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "<": "$<$", ">": "$>$", "|": "$|$", '"': "''", "–": "--", "—": "---", "…": r"\dots{}", "’": "'",
    "−": "$-$", "±": r"$\pm$", "×": r"$\times$", "≤": r"$\leq$", "≥": r"$\geq$", "∞": r"$\infty$",
    "Δ": r"$\Delta$", "ε": r"$\varepsilon$", "σ": r"$\sigma$", "τ": r"$\tau$", "α": r"$\alpha$",
    "δ": r"$\delta$", "γ": r"$\gamma$", "λ": r"$\lambda$", "μ": r"$\mu$", "→": r"$\to$",
    "“": "``", "”": "''", "‘": "`",
    "ß": r"\ss{}", "ø": r"\o{}", "Ø": r"\O{}", "æ": r"\ae{}", "Æ": r"\AE{}", "ł": r"\l{}", "Ł": r"\L{}",
    "[": "{[}", "*": "{*}",  # after a line's end these would belong to the command that ended it
    "`": "{`}",  # after a question mark this would turn it around
}  # fmt: skip
# The marks above and below letters, as combining characters and as LaTeX writes them.
_ACCENTS = dict(
    zip(
        "\u0300\u0301\u0302\u0303\u0304\u0306\u0307\u0308\u030a\u030b\u030c\u0327",
        "`'^~=u.\"rHvc",
        strict=True,
    )
)


def render_markdown(summary: Mapping[str, Any], plots: Mapping[str, Sequence[tuple[str, str]]]) -> str:
    """The report as GitHub shows it; plots gives by a part's name its pictures: (file, text)."""
    blocks = [f"# {markdown(summary['id'])}: {markdown(summary['title'])}"]
    blocks += [f"**{markdown(line)}**" for line in warnings(summary)]
    if sentence := headline(summary):
        blocks.append(f"> {markdown(sentence)}")
    for part in summary["parts"]:
        blocks.append(f"## {markdown(part['title'])}")
        blocks += [f"**{markdown(line)}**" for line in part_warnings(part)]
        blocks += [f"![{markdown(text)}]({file})" for file, text in plots.get(part["name"], ())]
        if part["rows"]:
            table = grid(part)
            blocks += filter(None, [_markdown_table(table), markdown(table.legend("bold"))])
        elif not part.get("gallery"):
            blocks.append("No figures.")
        blocks += [_markdown_gallery(part["gallery"])] if part.get("gallery") else []
        blocks += [_pairs(part_facts(part))] if part_facts(part) else []
        for heading, lines in part_audit(part):
            blocks.append(f"**{markdown(heading)}**")
            blocks += ["\n".join(f"- {markdown(line)}" for line in lines)] if lines else []
    if summary.get("notes"):
        blocks += ["## Known of the paper", "\n".join(f"- {markdown(note)}" for note in summary["notes"])]
    blocks += ["## How this was made", _pairs(summary_facts(summary))]
    return "\n\n".join(blocks) + "\n"


def render_latex(summary: Mapping[str, Any]) -> str:
    r"""A tabular for every part that has figures, to be read with \input; no package is needed."""
    lines = [
        f"% {_comment(summary['id'])}: {_comment(summary['title'])}",
        r"% \renewcommand{\vqfarbelow}[1]{\textcolor{red}{#1}} shows in red what is far below.",
        r"\providecommand{\vqfarbelow}[1]{\textbf{#1}}",
    ]
    before = warnings(summary) + [sentence for sentence in [headline(summary)] if sentence]
    lines += [rf"\par\noindent {latex(line)}\par" for line in before]
    for part in summary["parts"]:
        lines += ["", rf"\par\medskip\noindent\textbf{{{latex(part['title'])}}}\par"]
        lines += [rf"\noindent\emph{{{latex(line)}}}\par" for line in part_warnings(part)]
        if part["rows"]:
            table = grid(part)
            lines += [*_latex_table(table), latex(table.legend("bold"))]
        said = [f"{name}: {text}." for name, text in part_facts(part)]
        said += [f"{heading.rstrip('.')}." for heading, _ in part_audit(part)]
        lines += [latex(" ".join(said)) + r"\par"]
    lines += [rf"\par\medskip\noindent {latex(note)}\par" for note in summary.get("notes") or ()]
    made = "; ".join(f"{name}: {text}" for name, text in summary_facts(summary))
    return "\n".join([*lines, rf"\par\medskip\noindent {latex(made)}.\par", ""])


def markdown(value: object) -> str:
    """Text that GitHub shows as it is, inside a table too."""
    text = " ".join(str(value).split())
    text = re.sub(r"([\\`*_{}\[\]#|~$!])", r"\\\1", text)
    text = re.sub(r"[<>&]", lambda found: _ENTITIES[found[0]], text)
    # At a line's start these would begin a list or a heading.
    return re.sub(r"^(\d+(?=[.)](?: |$))|(?=[-+=]))", r"\1\\", text)


def latex(value: object) -> str:
    """Text that any LaTeX sets as it is; what its fonts lack is named by its number."""
    text = " ".join(str(value).split())
    return "".join(map(_latex_character, text, f"{text[1:]} "))


def _latex_character(char: str, following: str) -> str:
    if char == following == "-":
        return "-{}"  # two in a row would become one longer dash
    if char in _LATEX:
        return _LATEX[char]
    if char.isascii():
        return char if char.isprintable() else ""
    parts = unicodedata.normalize("NFD", char)
    if len(parts) == 2 and parts[0].isascii() and parts[1] in _ACCENTS:
        return f"\\{_ACCENTS[parts[1]]}{{{parts[0]}}}"
    whole = unicodedata.normalize("NFKD", char).replace("\N{FRACTION SLASH}", "/")
    plain = "".join(each for each in whole if not unicodedata.combining(each))
    # Half of a character would be another one.
    return "".join(_LATEX.get(each, each) for each in plain) if plain.isascii() else f"(U+{ord(char):04X})"


def _markdown_table(table: Grid) -> str:
    heads, cells = ["Defense"], []
    for heading in table.headings:
        count = f" (N = {heading.count})" if heading.count else ""
        for name in heading.shown:
            heads.append(f"{markdown(heading.title)}: {_NAMES[name]}{count if name == 'ours' else ''}")
    for line in table.lines:
        row = [markdown(line.title) + (" (as published)" if line.published else "")]
        for heading, cell in zip(table.headings, line.cells, strict=True):
            for name in heading.shown:
                text = getattr(cell, name)
                strong = name == "ours" and cell.far_below
                row.append((f"**{text}**" if strong else text) + _count(name, cell))
        cells.append(row)
    rule = [":--"] + ["--:"] * (len(heads) - 1)
    return "\n".join(f"| {' | '.join(row)} |" for row in (heads, rule, *cells))


def _latex_table(table: Grid) -> list[str]:
    spans = "".join(
        rf" & \multicolumn{{{len(heading.shown)}}}{{c}}{{{latex(heading.title)}"
        + (f" ($N={latex(heading.count)}$)}}" if heading.count else "}")
        for heading in table.headings
    )
    names = "".join(f" & {latex(_NAMES[name])}" for heading in table.headings for name in heading.shown)
    width = sum(len(heading.shown) for heading in table.headings)
    lines = [rf"\noindent\begin{{tabular}}{{l{'r' * width}}}", r"\hline"]
    lines += [rf"{spans} \\", rf"Defense{names} \\", r"\hline"]
    for line in table.lines:
        row = latex(line.title) + (" (as published)" if line.published else "")
        for heading, cell in zip(table.headings, line.cells, strict=True):
            for name in heading.shown:
                text = latex(getattr(cell, name))
                strong = name == "ours" and cell.far_below
                row += " & " + (rf"\vqfarbelow{{{text}}}" if strong else text) + _count(name, cell)
        lines.append(rf"{row} \\")
    return [*lines, r"\hline", r"\end{tabular}\par"]


def _count(name: str, cell: Cell) -> str:
    return f" (N = {cell.count})" if cell.count and name == "ours" else ""


def _markdown_gallery(gallery: Sequence[Mapping[str, Any]]) -> str:
    lines = []
    for entry in gallery:
        shown = [
            f"{picture['caption']}" + (f": {verdict(picture)}" if verdict(picture) else "")
            for picture in entry["pictures"]
        ]
        lines.append(f"- {markdown(entry['label'])}: {markdown('; '.join(shown))}")
    return "\n".join([*lines, "", "The pictures are in report.html."])


def verdict(picture: Mapping[str, Any]) -> str:
    """What the classifier takes a picture for, and whether that is right; empty where none was asked."""
    if picture.get("verdict") is None:
        return ""
    mark = {True: "✓ ", False: "✗ ", None: ""}[picture.get("correct")]
    return f"{mark}{picture['verdict']}"


def _pairs(pairs: Sequence[tuple[str, str]]) -> str:
    return "\n".join(f"- {markdown(name)}: {markdown(text)}" for name, text in pairs)


def _comment(value: object) -> str:
    return " ".join(str(value).split()).encode("ascii", "replace").decode()
