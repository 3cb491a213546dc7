"""The colours of plots, for a page in the light and in the dark, and the rest of their looks."""

import re
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Palette:
    """Colours of a page in the light or in the dark; the series are those of Okabe and Ito."""

    ink: str
    quiet: str
    line: str
    background: str
    bad: str
    ours: str
    series: tuple[str, ...]


LIGHT = Palette(
    ink="#1d1f23", quiet="#5f646d", line="#dcd8d0", background="#ffffff", bad="#b3261e", ours="#2f6f9f",
    series=("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#6b6b6b"),
)  # fmt: skip
DARK = Palette(
    ink="#e8e6e1", quiet="#a0a5af", line="#363c46", background="#14161a", bad="#ff8a80", ours="#6aabdb",
    series=("#4fa8e0", "#f0b030", "#2fc79a", "#e29ac4", "#ff8548", "#a9dbf7", "#a8a8a8"),
)  # fmt: skip


def _colours(palette: Palette) -> list[bytes]:
    one_by_one = (palette.ink, palette.quiet, palette.line, palette.background, palette.bad, palette.ours)
    return [colour.lower().encode() for colour in (*one_by_one, *palette.series)]


_DARK_FOR = dict(zip(_colours(LIGHT), _colours(DARK), strict=True))


def darkened(svg: bytes) -> bytes:
    """A plot in the colours of LIGHT as one in those of DARK: drawing it once more takes far longer."""
    return re.sub(rb"#[0-9a-f]{6}\b", lambda found: _DARK_FOR.get(found[0], found[0]), svg)


def style() -> dict[Any, Any]:
    """Settings of matplotlib, all that differ from its own."""
    return {
        "svg.hashsalt": "vqshield",
        "text.parse_math": False,  # a dollar in a title is a dollar
        "font.size": 9,
        "figure.constrained_layout.h_pad": 0.08,
        "figure.constrained_layout.w_pad": 0.08,
        "axes.titlesize": 9,
        "axes.titleweight": "bold",
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "axes.axisbelow": True,
        "grid.linewidth": 0.6,
        "legend.frameon": False,
        "xtick.major.size": 0,
        "ytick.major.size": 0,
        "grid.color": LIGHT.line,
        "axes.edgecolor": LIGHT.line,
        "figure.facecolor": LIGHT.background,
        "axes.facecolor": LIGHT.background,
        **dict.fromkeys(("text.color", "axes.labelcolor", "axes.titlecolor"), LIGHT.ink),
        **dict.fromkeys(("xtick.color", "ytick.color"), LIGHT.line),
        **dict.fromkeys(("xtick.labelcolor", "ytick.labelcolor"), LIGHT.quiet),
    }
