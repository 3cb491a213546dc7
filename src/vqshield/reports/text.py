"""Numbers and text as people, Markdown and LaTeX need them."""

import re
import unicodedata
from collections.abc import Iterable, Sequence

UNFINISHED = "The run is not finished: these are the results so far."
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
_COMBINING = "\u0300\u0301\u0302\u0303\u0304\u0306\u0307\u0308\u030a\u030b\u030c\u0327"
_ACCENTS = dict(zip(_COMBINING, "`'^~=u.\"rHvc", strict=True))  # the same marks as LaTeX writes them


def percent(fraction: float) -> str:
    """0.6734 as 67.3, the way tables of accuracies show it."""
    return f"{100 * fraction:.1f}"


def duration(seconds: float) -> str:
    """Seconds the way a person would say them."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} min" if seconds < 3600 else f"{seconds / 3600:.1f} h"


def escape_markdown(value: object) -> str:
    """Text that GitHub shows as it is."""
    # At a line's start these would begin a list or a heading.
    return re.sub(r"^(\d+(?=[.)](?: |$))|(?=[-+=]))", r"\1\\", escape_cell(value))


def escape_cell(value: object) -> str:
    """Text that GitHub shows as it is inside a line or a table."""
    text = " ".join(str(value).split())
    text = re.sub(r"([\\`*_{}\[\]#|~$!])", r"\\\1", text)
    return re.sub(r"[<>&]", lambda found: _ENTITIES[found[0]], text)


def markdown_table(heads: Sequence[str], rows: Iterable[Sequence[str]], *, names: int | None = None) -> str:
    """A table of cells that are Markdown already; columns after the first `names` are set to the right."""
    left = len(heads) if names is None else names
    rule = ["---"] * left + ["---:"] * (len(heads) - left)
    return "\n".join(
        [f"| {' | '.join(heads)} |", f"|{'|'.join(rule)}|", *(f"| {' | '.join(row)} |" for row in rows)]
    )


def escape_latex(value: object) -> str:
    """Text that any LaTeX sets as it is; a character that its fonts lack is named by its number."""
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
