"""The colours of plots, for a page in the light and in the dark, and the rest of their looks."""

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


def style(palette: Palette) -> dict[Any, Any]:
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
        "grid.color": palette.line,
        "axes.edgecolor": palette.line,
        "figure.facecolor": palette.background,
        "axes.facecolor": palette.background,
        **dict.fromkeys(("text.color", "axes.labelcolor", "axes.titlecolor"), palette.ink),
        **dict.fromkeys(("xtick.color", "ytick.color"), palette.line),
        **dict.fromkeys(("xtick.labelcolor", "ytick.labelcolor"), palette.quiet),
    }
