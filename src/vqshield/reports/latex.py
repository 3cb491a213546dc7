"""Text in LaTeX."""

import unicodedata

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
