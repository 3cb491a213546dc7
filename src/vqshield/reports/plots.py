"""Plots in every format that a report needs, and their colours: PNG, SVG, and SVG with stacked panels."""

import io
import re
from collections.abc import Callable
from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING

from vqshield.core.entry_points import require
from vqshield.reports.html import TEMPLATES

if TYPE_CHECKING:
    from matplotlib.figure import Figure


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
_DARK_FOR = {
    light.lower().encode(): dark.encode()
    for light, dark in zip(
        (*astuple(LIGHT)[:-1], *LIGHT.series), (*astuple(DARK)[:-1], *DARK.series), strict=True
    )
}
_COLOURS = {
    **dict.fromkeys(("grid.color", "axes.edgecolor", "xtick.color", "ytick.color"), LIGHT.line),
    **dict.fromkeys(("figure.facecolor", "axes.facecolor"), LIGHT.background),
    **dict.fromkeys(("text.color", "axes.labelcolor", "axes.titlecolor"), LIGHT.ink),
    **dict.fromkeys(("xtick.labelcolor", "ytick.labelcolor"), LIGHT.quiet),
}


@dataclass(frozen=True, kw_only=True)
class Plot:
    """A picture in the formats that a report needs, with a description for readers who cannot see it."""

    name: str
    png: bytes
    svg: bytes
    stacked_svg: bytes  # with its panels below each other, for a phone
    text: str

    @property
    def dark_svg(self) -> bytes:
        """For a page in the dark."""
        return _darkened(self.svg)

    @property
    def dark_stacked_svg(self) -> bytes:
        """For a phone in the dark."""
        return _darkened(self.stacked_svg)


def _darkened(svg: bytes) -> bytes:
    """A plot in the colours of LIGHT as one in those of DARK: drawing it once more takes far longer."""
    return re.sub(rb"#[0-9a-f]{6}\b", lambda found: _DARK_FOR.get(found[0], found[0]), svg)


def plot(name: str, text: str, draw: "Callable[[Figure, bool], None]") -> Plot:
    """Draw a plot. The same drawing gives the same bytes.

    Args:
        name: of its files, without the ending.
        text: what it shows, for readers who cannot see it.
        draw: called with an empty figure, and with whether its panels are to be stacked.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    matplotlib, figure = require("matplotlib", "cli"), require("matplotlib.figure", "cli")
    style = matplotlib.rc_params_from_file(TEMPLATES / "plots.mplstyle", use_default_template=False)

    def rendered(form: str, *, stacked: bool = False) -> bytes:
        with matplotlib.rc_context():
            matplotlib.rcdefaults()  # a reader's own settings of matplotlib would change the bytes
            matplotlib.rcParams.update(style | _COLOURS)
            picture = figure.Figure(layout="constrained")
            draw(picture, stacked)
            stream = io.BytesIO()
            # Versions and dates in a file would make it another file tomorrow.
            metadata = {"Software": None} if form == "png" else {"Date": None, "Creator": None}
            picture.savefig(stream, format=form, dpi=160, metadata=metadata)
            return stream.getvalue()

    png, svg, stacked_svg = rendered("png"), rendered("svg"), rendered("svg", stacked=True)
    return Plot(name=name, text=text, png=png, svg=svg, stacked_svg=stacked_svg)
