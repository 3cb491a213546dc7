"""Plots in every format that a report needs, and their colours: PNG, SVG, and SVG with stacked panels."""

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal

from vqshield.core.entry_points import require
from vqshield.models.draws import Accuracy
from vqshield.reports.html import TEMPLATES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
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
_DARK_FOR = dict(zip((*astuple(LIGHT)[:-1], *LIGHT.series), (*astuple(DARK)[:-1], *DARK.series), strict=True))
_COLOURS = {
    **dict.fromkeys(("grid.color", "axes.edgecolor", "xtick.color", "ytick.color"), LIGHT.line),
    **dict.fromkeys(("figure.facecolor", "axes.facecolor"), LIGHT.background),
    **dict.fromkeys(("text.color", "axes.labelcolor", "axes.titlecolor"), LIGHT.ink),
    **dict.fromkeys(("xtick.labelcolor", "ytick.labelcolor"), LIGHT.quiet),
}


@dataclass(frozen=True)
class Plot:
    """A picture in the formats that a report needs. The same drawing gives the same bytes.

    An SVG has the colours of a page in the light, and follows its reader into the dark.

    Attributes:
        name: of its files, without the ending.
        text: what it shows, for readers who cannot see it.
        draw: called with an empty figure, and with whether its panels are to be stacked, as for a phone.

    Raises:
        MissingExtraError: at the first use of a format, where matplotlib is not installed.
    """

    name: str
    text: str
    draw: "Callable[[Figure, bool], None]"

    @cached_property
    def png(self) -> bytes:
        """In the light."""
        return self._rendered("png")

    @cached_property
    def svg(self) -> bytes:
        """With its panels next to each other."""
        return _themed(self._rendered("svg"))

    @cached_property
    def stacked_svg(self) -> bytes:
        """With its panels below each other, for a phone."""
        return _themed(self._rendered("svg", stacked=True))

    def _rendered(self, form: str, *, stacked: bool = False) -> bytes:
        matplotlib, figure = require("matplotlib", "cli"), require("matplotlib.figure", "cli")
        style = matplotlib.rc_params_from_file(TEMPLATES / "plots.mplstyle", use_default_template=False)
        with matplotlib.rc_context():
            matplotlib.rcdefaults()  # a reader's own settings of matplotlib would change the bytes
            matplotlib.rcParams.update(style | _COLOURS)
            picture = figure.Figure(layout="constrained")
            self.draw(picture, stacked)
            stream = io.BytesIO()
            # Versions and dates in a file would make it another file tomorrow.
            metadata = {"Software": None} if form == "png" else {"Date": None, "Creator": None}
            picture.savefig(stream, format=form, dpi=160, metadata=metadata)
            return stream.getvalue()


def _themed(svg: bytes) -> bytes:
    """A plot in the colours of LIGHT that takes those of DARK where its reader prefers them."""
    rules = "".join(
        f'[style*="{kind}: {light.lower()}"]{{{kind}:{dark} !important}}'
        for light, dark in _DARK_FOR.items()
        for kind in ("fill", "stroke")
        if f"{kind}: {light.lower()}".encode() in svg
    )
    style = f"<style>@media (prefers-color-scheme: dark) {{{rules}}}</style>\n </defs>"
    return svg.replace(b"</defs>", style.encode(), 1)


def percent_axis(axes: "Axes", *, along: Literal["x", "y"] = "y", label: str = "accuracy in %") -> None:
    """An axis of percentages from 0 to 100."""
    getattr(axes, f"set_{along}lim")(-2, 102)
    getattr(axes, f"set_{along}ticks")(range(0, 101, 25))
    getattr(axes, f"set_{along}label")(label)


def dots(
    axes: "Axes",
    rows: Mapping[float, Accuracy],
    color: str,
    *,
    marker: str = "o",
    size: float = 5,
    label: str = "",
) -> None:
    """Accuracies with intervals of 95 %, each at its place from the top."""
    axes.errorbar(
        [100 * row.mean for row in rows.values()],
        list(rows),
        xerr=[196 * row.standard_error for row in rows.values()],
        color=color,
        linestyle="none",
        elinewidth=1.4,
        marker=marker,
        markersize=size,
        label=label,
    )


def name_rows(axes: "Axes", names: Sequence[str]) -> None:
    """Names at the left of the rows that `dots` drew, the first at the top."""
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.grid(visible=False, axis="y")
