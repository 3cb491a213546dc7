"""Plots of a reproduced experiment: the paper's values next to ours.

Curves: the paper's dashed, ours solid, a panel per attack; and, where asked for, natural against robust
accuracy. Tables: a dot per value, the paper's hollow, ours filled, attacks that know of the shield in red.
Bands and bars are the standard error over images, else the standard deviation over runs; the legend says
which. The same summary gives the same bytes.
"""

import math
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from vqshield.core.settings import format_value
from vqshield.reports.plots import LIGHT, Plot
from vqshield_paper.reports.comparison import on_same_images
from vqshield_paper.reports.provenance import section_title
from vqshield_paper.reproduction.model import SPREADS, Column, PartSummary, Row, Value, View

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    Drawing = Callable[[Figure, PartSummary, bool], None]

Source = Literal["ours", "paper"]
_Series = list[tuple[float, Row]]
"""The rows of a curve, each with the setting that it is plotted over."""
_STYLES: dict[Source, Literal["-", "--"]] = {"ours": "-", "paper": "--"}
_TICK = 25  # percent
_WORD, _LINE = 2.4, 0.2  # inches that a long word of a legend of dots takes, and a line of it
_NARROW = 24  # letters of a name in a line, on a phone
_MARKERS = "osD^vPX"
_PANELS_IN_A_ROW = 4
_MOST_WORDS = 6  # of a legend of curves in a line
_BESIDE = 2.8  # inches that two words of a legend of curves take, one of them long
_LOGARITHMIC = 30  # a setting that grows by this factor is read by its factors


def part_plots(part: PartSummary, view: View) -> list[Plot]:
    """The plots of a part: none where there is nothing to draw."""
    if view not in ("curves", "table") or not _drawn_columns(part):
        return []
    if view == "table":
        return [_plot(f"plot-{part.name}", _dots_text(part), draw_dots, part)]
    plots = []
    if any(row.x is not None for row in part.rows):
        plots.append(_plot(f"plot-{part.name}", _curves_text(part), draw_curves, part))
    if _tradeoff_columns(part):
        setting = part.x_title or "defense"
        text = f"{section_title(part)}: natural against robust accuracy, a point per {setting}."
        plots.append(_plot(f"tradeoff-{part.name}", text, draw_tradeoff, part))
    return plots


def _plot(name: str, text: str, draw: "Drawing", part: PartSummary) -> Plot:
    return Plot(name, text, lambda picture, stacked: draw(picture, part, stacked))


def _dots_text(part: PartSummary) -> str:
    return (
        f"{section_title(part)}: a dot per value for {_titles(part)}; the paper's hollow, ours filled, "
        f"attacks that know of the shield in red{_spread_text('bars', _values(part))}. "
        "The values are in the table."
    )


def _curves_text(part: PartSummary) -> str:
    return (
        f"{section_title(part)}: {_titles(part)} over {part.x_title or 'x'}; the paper's curves dashed, "
        f"ours solid{_spread_text('bands', _values_on_curves(part))}. The values are in the table."
    )


def _titles(part: PartSummary) -> str:
    return ", ".join(column.title for column in part.columns)


def _spread_text(shape: str, values: Iterable[Value]) -> str:
    words = _spread_words(values)
    return f"; {shape}: {' '.join(words.split())}" if words else ""


# What is drawn of the values


def _drawn_columns(part: PartSummary) -> list[Column]:
    return [column for column in part.columns if part.has_values(column.key)]


def _values(part: PartSummary) -> list[Value]:
    return [value for *_, value in part.filled()]


def _values_on_curves(part: PartSummary) -> list[Value]:
    return [value for row, _, value in part.filled() if row.x is not None]


def _of(source: Source, value: Value) -> float | None:
    return value.ours if source == "ours" else value.paper


def _drawn_spread(value: Value) -> float | None:
    """The spread that a plot draws of our value: over images, else over runs."""
    known = (value.spread(kind) for kind in reversed(SPREADS))
    return None if value.ours is None else next((spread for spread in known if spread is not None), None)


def _spread_words(values: Iterable[Value]) -> str | None:
    """What the bars and bands of a plot are, in lines short enough for its legend; None without any."""
    ours = [value for value in values if value.ours is not None]
    over_images = any(value.standard_error is not None for value in ours)
    over_runs = any(value.standard_error is None and value.std is not None for value in ours)
    words = [SPREADS["standard_error"]] * over_images + [SPREADS["std"]] * over_runs
    return "± " + ",\nelse ".join(words) if words else None


def _title(axes: "Axes", column: Column) -> None:
    axes.set_title(column.title, color=LIGHT.bad if column.knowing else LIGHT.ink)


# Dots: a row per defense, a panel per column


def draw_dots(picture: "Figure", part: PartSummary, stacked: bool = False) -> None:
    """A panel for every column that has values, in each a dot for the paper's and one for ours.

    Stacked, for a phone, others' published results come last, as they do in the table there.
    """
    columns = _drawn_columns(part)
    rows = sorted(part.rows, key=lambda row: row.literature) if stacked else part.rows
    down, across = (len(columns), 1) if stacked else (1, len(columns))
    picture.set_size_inches(2.2 + 1.9 * across, 0.5 + (0.65 + 0.27 * len(rows)) * down)
    panels: list[Axes] = (
        picture.subplots(down, across, sharey=True, sharex=True, squeeze=False).ravel().tolist()
    )
    for axes, column in zip(panels, columns, strict=True):
        _title(axes, column)
        for height, row in enumerate(rows):
            colour = LIGHT.bad if column.knowing else LIGHT.ours
            _draw_dot(axes, height, row.value(column.key), part.scale, colour)
        axes.grid(visible=False, axis="y")
        axes.tick_params(axis="y", labelcolor=LIGHT.ink)
        axes.set_xlabel(part.unit)
    first = panels[0]
    names = [row.title + (" *" if row.literature else "") for row in rows]
    if stacked:
        names = [textwrap.fill(name, _NARROW) for name in names]
    first.set_yticks(range(len(names)), names)
    first.set_ylim(len(names) - 0.4, -0.6)
    if part.unit == "%":
        ticks = range(_TICK * min(0, math.floor(_lowest_difference(part) / _TICK)), 101, _TICK)
        first.set_xlim(ticks[0] - 4, 104)
        first.set_xticks(ticks)
    _dots_legend(picture, part)


def _lowest_difference(part: PartSummary) -> float:
    """The lowest of the values that may be below zero, as shown; 0 where there is none."""
    values = [value for _, column, value in part.filled() if column.difference]
    known = [each for value in values for each in (value.paper, value.ours) if each is not None]
    return part.scale * min(known, default=0.0)


def _draw_dot(axes: "Axes", height: int, value: Value, scale: float, colour: str) -> None:
    paper, ours = value.paper, value.ours
    if paper is not None and ours is not None:
        axes.plot([scale * paper, scale * ours], [height, height], color=LIGHT.line, linewidth=2, zorder=1)
    if paper is not None:
        axes.plot([scale * paper], [height], "o", markersize=8, markerfacecolor=LIGHT.background,
                  markeredgecolor=colour, markeredgewidth=1.3, zorder=2)  # fmt: skip
    if ours is not None:
        spread = _drawn_spread(value)
        error = None if spread is None else [scale * spread]
        axes.errorbar([scale * ours], [height], xerr=error, fmt="o", markersize=5,
                      color=colour, elinewidth=1.2, capsize=2, zorder=3)  # fmt: skip


def _dots_legend(picture: "Figure", part: PartSummary) -> None:
    """What those dots mean that occur."""
    from matplotlib.lines import Line2D

    found = [(column.knowing, value) for _, column, value in part.filled()]
    paper = "paper (*: as published)" if any(row.literature for row in part.rows) else "paper"
    looks: dict[str, tuple[str, str]] = {}
    if any(value.paper is not None for _, value in found):
        looks[paper] = (LIGHT.ours, "none")
    if any(value.ours is not None for _, value in found):
        looks["ours"] = (LIGHT.ours, LIGHT.ours)
    if any(knowing and value.ours is not None for knowing, value in found):
        looks["attack that knows of the shield"] = (LIGHT.bad, LIGHT.bad)
    dots = [
        Line2D([], [], marker="o", linestyle="", markeredgecolor=edge, markerfacecolor=fill)
        for edge, fill in looks.values()
    ]
    words = list(looks)
    if bars := _spread_words(_values(part)):
        dots.append(Line2D([], [], marker="|", color=LIGHT.ours, linewidth=1.2))
        words.append(bars)
    # A legend wider than its picture is cut off; a taller one would shrink the plot.
    across = min(len(words), int(picture.get_figwidth() / _WORD))
    lines = math.ceil(len(words) / across) + words[-1].count("\n")
    picture.set_figheight(picture.get_figheight() + _LINE * (lines - 1))
    picture.legend(dots, words, loc="outside lower center", ncols=across)


# Curves over a setting, and the trade-off between natural and robust accuracy


@dataclass(frozen=True, kw_only=True)
class _Look:
    """How a curve is drawn: a colour and marker per series, solid for ours and dashed for the paper's."""

    colour: str
    marker: str
    source: Source

    def draw(self, axes: "Axes", xs: Sequence[float], ys: Sequence[float]) -> None:
        fill = self.colour if self.source == "ours" else "none"
        axes.plot(
            xs, ys, _STYLES[self.source], color=self.colour, marker=self.marker, markerfacecolor=fill,
            markersize=4.5, linewidth=1.4,
        )  # fmt: skip


def draw_curves(picture: "Figure", part: PartSummary, stacked: bool = False) -> None:
    """A panel for every column that has values; a defense without a setting is a line across all of them."""
    columns = _drawn_columns(part)
    across = 1 if stacked else min(len(columns), _PANELS_IN_A_ROW)
    panels = _panels(picture, len(columns), across, height=2.7)
    series, flat = _series(part), [row for row in part.rows if row.x is None]
    for axes, column in zip(panels, columns, strict=True):
        _title(axes, column)
        for place, rows in enumerate(series.values()):
            for look in _looks(place):
                _draw_curve(axes, part, rows, column.key, look)
        for row in flat:
            for source, line in _STYLES.items():
                value = _of(source, row.value(column.key))
                if value is not None:
                    axes.axhline(part.scale * value, color=LIGHT.quiet, linestyle=line, linewidth=1)
        _scale_x(axes, part)
    _scale_accuracy(panels[0], part)
    share = "difference, points" if part.only_differences else "accuracy, %"
    for axes in panels[::across]:
        axes.set_ylabel(share if part.unit == "%" else part.unit)
    bands = _spread_words(_values_on_curves(part))
    _curves_legend(picture, list(series), [row.title for row in flat], bands=bands)


def draw_tradeoff(picture: "Figure", part: PartSummary, stacked: bool = False) -> None:
    """Natural accuracy to the right, robust accuracy upwards; every point bears its setting."""
    columns, series = _tradeoff_columns(part), _series(part)
    across = 1 if stacked else min(len(columns), _PANELS_IN_A_ROW)
    panels = _panels(picture, len(columns), across, width=3.6, height=3.4)
    unit = ", %" if part.unit == "%" else ""
    for axes, column in zip(panels, columns, strict=True):
        _title(axes, column)
        axes.set_xlabel(f"natural accuracy{unit}")
        for place, rows in enumerate(series.values()):
            for look in _looks(place):
                _draw_path(axes, part, rows, column.key, look)
    _scale_accuracy(panels[0], part)
    for axes in panels[::across]:
        axes.set_ylabel(f"robust accuracy{unit}")
    _curves_legend(picture, list(series), [])


def _tradeoff_columns(part: PartSummary) -> list[Column]:
    """The robust columns to set against the natural one; none where no trade-off is asked for."""
    if not part.tradeoff or not {"natural", "autoattack"} <= {column.key for column in part.columns}:
        return []
    rows = [row for row in part.rows if row.x is not None]
    return [
        column
        for column in part.columns
        if (column.key == "autoattack" or column.knowing)
        and any(_natural_and_robust(row, column.key, source) for row in rows for source in _STYLES)
    ]


def _draw_curve(axes: "Axes", part: PartSummary, rows: _Series, key: str, look: _Look) -> None:
    known = [(x, y, row.value(key)) for x, row in rows if (y := _of(look.source, row.value(key))) is not None]
    xs, ys = [x for x, *_ in known], [part.scale * y for _, y, _ in known]
    look.draw(axes, xs, ys)
    if look.source == "ours":
        spreads = [part.scale * (_drawn_spread(value) or 0.0) for *_, value in known]
        below = [y - spread for y, spread in zip(ys, spreads, strict=True)]
        above = [y + spread for y, spread in zip(ys, spreads, strict=True)]
        axes.fill_between(xs, below, above, color=look.colour, alpha=0.2, linewidth=0)


def _draw_path(axes: "Axes", part: PartSummary, rows: _Series, key: str, look: _Look) -> None:
    points = [(x, found) for x, row in rows if (found := _natural_and_robust(row, key, look.source))]
    xs, ys = ([part.scale * found[place] for _, found in points] for place in (0, 1))
    look.draw(axes, xs, ys)
    # The paper's labels above its points, ours below: the two curves are often close.
    offset = (4, -9) if look.source == "ours" else (4, 4)
    for (setting, _), x, y in zip(points, xs, ys, strict=True):
        label = axes.annotate(format_value(setting), (x, y), xytext=offset, textcoords="offset points")
        label.set(fontsize=7, color=look.colour)


def _natural_and_robust(row: Row, key: str, source: Source) -> tuple[float, float] | None:
    """Ours only where both are over the same images."""
    natural, robust = row.value("natural"), row.value(key)
    if source == "ours":
        same = on_same_images(natural, robust)
        return same[:2] if same else None
    return None if natural.paper is None or robust.paper is None else (natural.paper, robust.paper)


def _panels(picture: "Figure", count: int, across: int, *, height: float, width: float = 2.6) -> "list[Axes]":
    down = -(-count // across)
    picture.set_size_inches(max(0.7 + width * across, 4.5), 0.6 + height * down)
    grid = picture.subplots(down, across, sharex=True, sharey=True, squeeze=False)
    panels = [axes for line in grid for axes in line]
    for spare in panels[count:]:
        spare.remove()
    return panels[:count]


def _series(part: PartSummary) -> dict[str, _Series]:
    """The rows that have a setting, by the curve they belong to, in the setting's order."""
    found: dict[str, _Series] = {}
    for row in part.rows:
        if row.x is not None:
            found.setdefault(row.series or "all", []).append((row.x, row))
    return {name: sorted(rows, key=lambda each: each[0]) for name, rows in found.items()}


def _looks(place: int) -> list[_Look]:
    colour, marker = LIGHT.series[place % len(LIGHT.series)], _MARKERS[place % len(_MARKERS)]
    return [_Look(colour=colour, marker=marker, source=source) for source in reversed(_STYLES)]


def _scale_x(axes: "Axes", part: PartSummary) -> None:
    values = sorted({row.x for row in part.rows if row.x is not None})
    axes.set_xlabel(part.x_title or "x")
    logarithmic = len(values) > 1 and values[0] > 0 and values[-1] >= _LOGARITHMIC * values[0]
    if logarithmic:
        axes.set_xscale("log")
        axes.minorticks_off()
    if logarithmic or len(values) <= 6:
        axes.set_xticks(values, [format_value(value) for value in values])


def _scale_accuracy(axes: "Axes", part: PartSummary) -> None:
    """Accuracies start at zero, whatever they are: a cut axis makes small differences large."""
    if part.unit == "%":
        bottom, top = axes.get_ylim()
        # A difference may be negative, an accuracy may not, whatever its band.
        lowest = bottom if any(column.difference for column in part.columns) else 0.0
        axes.set_ylim(min(lowest, -2.5), 102.5 if top > 50 else max(top, 5.0))


def _curves_legend(
    picture: "Figure",
    series: Sequence[str],
    flat: Sequence[str],
    *,
    bands: str | None = None,
) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles: list[Line2D | Patch] = []
    words: list[str] = []
    for place, name in enumerate(series):
        look = _looks(place)[0]
        handles.append(Line2D([], [], color=look.colour, marker=look.marker, markersize=4.5))
        words.append(name)
    for name in dict.fromkeys(flat):
        handles.append(Line2D([], [], color=LIGHT.quiet, linewidth=1))
        words.append(name)
    for source, line in _STYLES.items():
        handles.append(Line2D([], [], color=LIGHT.ink, linestyle=line, linewidth=1.2))
        words.append(source)
    if bands:
        handles.append(Patch(color=LIGHT.ink, alpha=0.2, linewidth=0))
        words.append(bands)
    numbers = [str(place) for place in range(len(words))]
    # The label of the bands is long, and would be cut off in one row with the others on a narrow picture.
    across = 2 * int(picture.get_figwidth() / _BESIDE) if bands else _MOST_WORDS
    legend = picture.legend(
        handles, numbers, loc="outside lower center", ncols=min(len(words), across, _MOST_WORDS)
    )
    # Set afterwards: a word that begins with an underscore would be left out.
    for text, word in zip(legend.get_texts(), words, strict=True):
        text.set_text(word)
