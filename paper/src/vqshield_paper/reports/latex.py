"""A reproduced experiment as LaTeX tables that need no package."""

import unicodedata

from vqshield_paper.reports.comparison import headline
from vqshield_paper.reports.grid import ENTRIES, Grid, grid_of
from vqshield_paper.reports.notices import part_audits, part_warnings, unfinished
from vqshield_paper.reports.provenance import part_facts, section_title, summary_facts
from vqshield_paper.reproduction.model import Summary

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


def render_latex(summary: Summary) -> str:
    r"""A tabular for every part that has values, to be read with \input."""
    lines = [
        f"% {_comment(summary.id)}: {_comment(summary.title)}",
        r"% \renewcommand{\vqfarbelow}[1]{\textcolor{red}{#1}} shows in red what is far below.",
        r"\providecommand{\vqfarbelow}[1]{\textbf{#1}}",
    ]
    before = [*unfinished(summary), headline(summary)]
    lines += [rf"\par\noindent {escape_latex(line)}\par" for line in before if line]
    for part in summary.parts:
        lines += ["", rf"\par\medskip\noindent\textbf{{{escape_latex(section_title(part))}}}\par"]
        lines += [rf"\noindent\emph{{{escape_latex(line)}}}\par" for line in part_warnings(part)]
        if part.rows:
            grid = grid_of(part)
            lines += [*_table(grid), escape_latex(grid.legend("bold"))]
        said = [f"{name}: {text}." for name, text in part_facts(part)]
        said += [f"{heading.rstrip('.')}." for heading, _ in part_audits(part)]
        lines += [escape_latex(" ".join(said)) + r"\par"]
    lines += [rf"\par\medskip\noindent {escape_latex(note)}\par" for note in summary.notes]
    made = "; ".join(f"{name}: {text}" for name, text in summary_facts(summary))
    return "\n".join([*lines, rf"\par\medskip\noindent {escape_latex(made)}.\par", ""])


def escape_latex(value: object) -> str:
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


def _table(grid: Grid) -> list[str]:
    spans = "".join(
        rf" & \multicolumn{{{len(heading.shown)}}}{{c}}{{{escape_latex(heading.title)}"
        + (f" ($N={escape_latex(heading.count)}$)}}" if heading.count else "}")
        for heading in grid.headings
    )
    shown = [entry for heading in grid.headings for entry in heading.shown]
    names = "".join(f" & {escape_latex(ENTRIES[entry])}" for entry in shown)
    lines = [rf"\noindent\begin{{tabular}}{{l{'r' * len(shown)}}}", r"\hline"]
    lines += [rf"{spans} \\", rf"Defense{names} \\", r"\hline"]
    for line in grid.lines:
        row = escape_latex(line.title) + (" (as published)" if line.published else "")
        for text, far_below, count in grid.entries(line):
            plain = escape_latex(text)
            row += " & " + (rf"\vqfarbelow{{{plain}}}" if far_below else plain) + count
        lines.append(rf"{row} \\")
    return [*lines, r"\hline", r"\end{tabular}\par"]


def _comment(text: str) -> str:
    return " ".join(text.split()).encode("ascii", "replace").decode()
