"""Plots in every format that a report needs: PNG, SVG, and SVG with stacked panels for a phone."""

import io
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vqshield.core.errors import MissingExtraError
from vqshield.reports.palette import darkened, style

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, kw_only=True)
class Plot:
    """A picture in the formats that a report needs, with a description for readers who cannot see it.

    Attributes:
        stacked_svg: with its panels below each other, for a phone.
    """

    name: str
    png: bytes
    svg: bytes
    stacked_svg: bytes
    text: str

    @property
    def dark_svg(self) -> bytes:
        """For a page in the dark."""
        return darkened(self.svg)

    @property
    def dark_stacked_svg(self) -> bytes:
        """For a phone in the dark."""
        return darkened(self.stacked_svg)


def plot(name: str, text: str, draw: "Callable[[Figure, bool], None]") -> Plot:
    """Draw a plot. The same drawing gives the same bytes.

    Args:
        name: of its files, without the ending.
        text: what it shows, for readers who cannot see it.
        draw: draws on an empty figure; its second argument says whether panels are stacked.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError("matplotlib", "cli") from error

    def rendered(form: str, *, stacked: bool = False) -> bytes:
        with matplotlib.rc_context():
            matplotlib.rcdefaults()  # a reader's own settings of matplotlib would change the bytes
            matplotlib.rcParams.update(style())
            picture = Figure(layout="constrained")
            draw(picture, stacked)
            stream = io.BytesIO()
            # Versions and dates in a file would make it another file tomorrow.
            metadata = {"Software": None} if form == "png" else {"Date": None, "Creator": None}
            picture.savefig(stream, format=form, dpi=160, metadata=metadata)
            return stream.getvalue()

    return Plot(
        name=name,
        text=text,
        png=rendered("png"),
        svg=rendered("svg"),
        stacked_svg=rendered("svg", stacked=True),
    )
