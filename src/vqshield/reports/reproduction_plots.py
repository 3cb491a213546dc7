"""Plots of a reproduced experiment: the paper's figures beside ours.

Curves: the paper's dashed, ours solid, a panel per attack. Tables: a dot per figure, the paper's hollow, ours
filled, attacks that know of the shield in red. Bands and bars are the standard error over images, else the
standard deviation over runs; the legend says which. The same summary gives the same bytes.
"""

import io
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vqshield.errors import MissingExtraError
from vqshield.reports.reproduction_curves import draw_curves, draw_tradeoff, tradeoff_columns
from vqshield.reports.reproduction_palette import DARK, LIGHT, Palette, style
from vqshield.reports.reproduction_parts import (
    KNOWING,
    drawn_spread,
    drawn_spread_words,
    figure,
    figures,
    has_figures,
    scale,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    Drawing = Callable[[Figure, Mapping[str, Any], Palette], None]

_TICK = 25  # percent
_WORD, _LINE = 2.4, 0.2  # inches that a long word of a legend takes, and a line of it


@dataclass(frozen=True, kw_only=True)
class Plot:
    """A picture in the formats a report needs, and what stands for it where it cannot be seen."""

    name: str
    png: bytes
    svg: bytes
    dark_svg: bytes
    text: str


def part_plots(part: Mapping[str, Any], kind: str) -> list[Plot]:
    """The plots of a part: none where there is nothing to draw."""
    drawn = any(has_figures(part, column["key"]) for column in part["columns"])
    if not drawn or kind not in ("curves", "table"):
        return []
    if kind == "table":
        return [_plot(f"plot-{part['name']}", _dot_text(part), _draw_dots, part)]
    plots = []
    if any(row.get("x") is not None for row in part["rows"]):
        plots.append(_plot(f"plot-{part['name']}", _curve_text(part), draw_curves, part))
    if tradeoff_columns(part):
        setting = part.get("x_title") or "defense"
        text = f"{part['title']}: natural against robust accuracy, a point per {setting}."
        plots.append(_plot(f"tradeoff-{part['name']}", text, draw_tradeoff, part))
    return plots


def _plot(name: str, text: str, draw: "Drawing", part: Mapping[str, Any]) -> Plot:
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError("matplotlib", "cli") from error

    def rendered(palette: Palette, form: str) -> bytes:
        with matplotlib.rc_context():
            # A reader's own settings of matplotlib would change the bytes.
            matplotlib.rcdefaults()
            matplotlib.rcParams.update(style(palette))
            picture = Figure(layout="constrained")
            draw(picture, part, palette)
            stream = io.BytesIO()
            # Versions and dates in a file would make it another file tomorrow.
            metadata = {"Software": None} if form == "png" else {"Date": None, "Creator": None}
            picture.savefig(stream, format=form, dpi=160, metadata=metadata)
            return stream.getvalue()

    return Plot(
        name=name,
        text=text,
        png=rendered(LIGHT, "png"),
        svg=rendered(LIGHT, "svg"),
        dark_svg=rendered(DARK, "svg"),
    )


def _draw_dots(picture: "Figure", part: Mapping[str, Any], palette: Palette) -> None:
    columns = [column for column in part["columns"] if has_figures(part, column["key"])]
    rows = part["rows"]
    picture.set_size_inches(2.2 + 1.9 * len(columns), 1.15 + 0.27 * len(rows))
    panels: Sequence[Axes] = picture.subplots(1, len(columns), sharey=True, sharex=True, squeeze=False)[0]
    for axes, column in zip(panels, columns, strict=True):
        knowing = column["level"] in KNOWING
        colour = palette.bad if knowing else palette.ours
        axes.set_title(column["title"], color=palette.bad if knowing else palette.ink)
        for height, row in enumerate(rows):
            _draw_dot(axes, height, figure(row, column["key"]), scale(part), colour, palette)
        axes.grid(visible=False, axis="y")
        axes.set_xlabel(part["unit"])
    first = panels[0]
    first.set_yticks(
        range(len(rows)), [row["title"] + (" *" if row.get("literature") else "") for row in rows]
    )
    first.tick_params(axis="y", labelcolor=palette.ink)
    first.set_ylim(len(rows) - 0.4, -0.6)
    if part["unit"] == "%":
        ticks = range(_TICK * min(0, math.floor(_lowest(part, columns) / _TICK)), 101, _TICK)
        first.set_xlim(ticks[0] - 4, 104)
        first.set_xticks(ticks)
    _dot_legend(picture, part, palette)


def _lowest(part: Mapping[str, Any], columns: Sequence[Mapping[str, Any]]) -> float:
    """The lowest figure of those that may be below zero, as shown; 0 where there is none."""
    keys = [column["key"] for column in columns if column.get("difference")]
    found = [figure(row, key).get(name) for row in part["rows"] for key in keys for name in ("paper", "ours")]
    return scale(part) * min((value for value in found if value is not None), default=0.0)


def _draw_dot(
    axes: "Axes", height: int, found: Mapping[str, Any], factor: float, colour: str, palette: Palette
) -> None:
    paper, ours = found.get("paper"), found.get("ours")
    if paper is not None and ours is not None:
        axes.plot(
            [factor * paper, factor * ours], [height, height], color=palette.line, linewidth=2, zorder=1
        )
    if paper is not None:
        axes.plot([factor * paper], [height], "o", markersize=8, markerfacecolor=palette.background,
                  markeredgecolor=colour, markeredgewidth=1.3, zorder=2)  # fmt: skip
    if ours is not None:
        spread = drawn_spread(found)
        error = [factor * found[spread]] if spread else None
        axes.errorbar([factor * ours], [height], xerr=error, fmt="o", markersize=5,
                      color=colour, elinewidth=1.2, capsize=2, zorder=3)  # fmt: skip


def _dot_legend(picture: "Figure", part: Mapping[str, Any], palette: Palette) -> None:
    """What those dots mean that occur."""
    from matplotlib.lines import Line2D

    found = [(column["level"] in KNOWING, each) for _, column, each in figures(part)]
    paper = "paper (*: as published)" if any(row.get("literature") for row in part["rows"]) else "paper"
    looks: dict[str, tuple[str, str]] = {}
    if any(each.get("paper") is not None for _, each in found):
        looks[paper] = (palette.ours, "none")
    if any(each.get("ours") is not None for _, each in found):
        looks["ours"] = (palette.ours, palette.ours)
    if any(knowing and each.get("ours") is not None for knowing, each in found):
        looks["attack that knows of the shield"] = (palette.bad, palette.bad)
    dots = [
        Line2D([], [], marker="o", linestyle="", markeredgecolor=edge, markerfacecolor=fill)
        for edge, fill in looks.values()
    ]
    words = list(looks)
    if bars := drawn_spread_words(part):
        dots.append(Line2D([], [], marker="|", color=palette.ours, linewidth=1.2))
        words.append(bars)
    # A legend wider than its picture is cut off; a higher one would take its room from the dots.
    across = min(len(words), int(picture.get_figwidth() / _WORD))
    lines = math.ceil(len(words) / across) + words[-1].count("\n")
    picture.set_figheight(picture.get_figheight() + _LINE * (lines - 1))
    picture.legend(dots, words, loc="outside lower center", ncols=across)


def _dot_text(part: Mapping[str, Any]) -> str:
    return (
        f"{part['title']}: a dot per figure for {_titles(part)}; the paper's hollow, ours filled, attacks "
        f"that know of the shield in red{_spread_text('bars', part)}. The figures stand in the table."
    )


def _curve_text(part: Mapping[str, Any]) -> str:
    banded = {**part, "rows": [row for row in part["rows"] if row.get("x") is not None]}
    return (
        f"{part['title']}: {_titles(part)} over {part.get('x_title') or 'x'}; the paper's curves dashed, "
        f"ours solid{_spread_text('bands', banded)}. The figures stand in the table."
    )


def _spread_text(shape: str, part: Mapping[str, Any]) -> str:
    words = drawn_spread_words(part)
    return f"; {shape}: {' '.join(words.split())}" if words else ""


def _titles(part: Mapping[str, Any]) -> str:
    return ", ".join(column["title"] for column in part["columns"])
