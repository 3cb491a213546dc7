"""Curves over a setting, and the trade-off between natural and robust accuracy."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from vqshield.reports.reproduction_comparison import on_same_images
from vqshield.reports.reproduction_palette import Palette
from vqshield.reports.reproduction_parts import (
    KNOWING,
    drawn_spread,
    drawn_spread_words,
    figure,
    has_figures,
    only_differences,
    scale,
)
from vqshield.settings import format_value

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MARKERS = "osD^vPX"
_PANELS_IN_A_ROW = 4
_MOST_WORDS = 6  # of a legend in a line
_BESIDE = 2.8  # inches that two words of a legend take, one of them long
_LOGARITHMIC = 30  # a setting that grows so many times over is read by its factors
_STYLES: dict[str, Literal["-", "--"]] = {"ours": "-", "paper": "--"}


@dataclass(frozen=True, kw_only=True)
class _Look:
    """How a curve is drawn: a colour and marker per series, solid for ours and dashed for the paper's."""

    colour: str
    marker: str
    source: str

    def draw(self, axes: "Axes", xs: Sequence[float], ys: Sequence[float]) -> None:
        fill = self.colour if self.source == "ours" else "none"
        axes.plot(
            xs, ys, _STYLES[self.source], color=self.colour, marker=self.marker, markerfacecolor=fill,
            markersize=4.5, linewidth=1.4,
        )  # fmt: skip


def draw_curves(picture: "Figure", part: Mapping[str, Any], palette: Palette) -> None:
    """A panel for every column that has figures; a defense without a setting is a line across all of them."""
    columns = [column for column in part["columns"] if has_figures(part, column["key"])]
    panels = _panels(picture, len(columns), height=2.7)
    series, flat = _series(part), [row for row in part["rows"] if row.get("x") is None]
    for axes, column in zip(panels, columns, strict=True):
        _title(axes, column, palette)
        for place, rows in enumerate(series.values()):
            for look in _looks(place, palette):
                _draw_curve(axes, part, rows, column["key"], look)
        for row in flat:
            for source, style in _STYLES.items():
                value = figure(row, column["key"]).get(source)
                if value is not None:
                    axes.axhline(scale(part) * value, color=palette.quiet, linestyle=style, linewidth=1)
        _scale_x(axes, part)
    _scale_accuracy(panels[0], part)
    share = "difference, points" if only_differences(part) else "accuracy, %"
    quantity = share if part["unit"] == "%" else part["unit"]
    for axes in panels[::_PANELS_IN_A_ROW]:
        axes.set_ylabel(quantity)
    bands = drawn_spread_words({**part, "rows": [row for rows in series.values() for row in rows]})
    _legend(picture, list(series), [row["title"] for row in flat], palette, bands=bands)


def tradeoff_columns(part: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The robust columns to set against the natural one; none where no trade-off is asked for."""
    keys = {column["key"] for column in part["columns"]}
    if not part.get("tradeoff") or not {"natural", "autoattack"} <= keys:
        return []
    rows = [row for each in _series(part).values() for row in each]
    return [
        column
        for column in part["columns"]
        if (column["key"] == "autoattack" or column["level"] in KNOWING)
        and any(_point(row, column["key"], source) for row in rows for source in _STYLES)
    ]


def draw_tradeoff(picture: "Figure", part: Mapping[str, Any], palette: Palette) -> None:
    """Natural accuracy to the right, robust accuracy upwards; every point bears its setting."""
    columns, series = tradeoff_columns(part), _series(part)
    panels = _panels(picture, len(columns), width=3.6, height=3.4)
    for axes, column in zip(panels, columns, strict=True):
        _title(axes, column, palette)
        axes.set_xlabel("natural accuracy" + (", %" if part["unit"] == "%" else ""))
        for place, rows in enumerate(series.values()):
            for look in _looks(place, palette):
                _draw_path(axes, part, rows, column["key"], look)
    _scale_accuracy(panels[0], part)
    for axes in panels[::_PANELS_IN_A_ROW]:
        axes.set_ylabel("robust accuracy" + (", %" if part["unit"] == "%" else ""))
    _legend(picture, list(series), [], palette)


def _draw_curve(
    axes: "Axes", part: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], key: str, look: _Look
) -> None:
    known = [row for row in rows if figure(row, key).get(look.source) is not None]
    xs = [row["x"] for row in known]
    ys = [scale(part) * figure(row, key)[look.source] for row in known]
    look.draw(axes, xs, ys)
    if look.source == "ours":
        found = [figure(row, key) for row in known]
        spreads = [scale(part) * each[name] if (name := drawn_spread(each)) else 0.0 for each in found]
        below = [y - spread for y, spread in zip(ys, spreads, strict=True)]
        above = [y + spread for y, spread in zip(ys, spreads, strict=True)]
        axes.fill_between(xs, below, above, color=look.colour, alpha=0.2, linewidth=0)


def _draw_path(
    axes: "Axes", part: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], key: str, look: _Look
) -> None:
    points = [(row["x"], found) for row in rows if (found := _point(row, key, look.source))]
    xs, ys = ([scale(part) * found[place] for _, found in points] for place in (0, 1))
    look.draw(axes, xs, ys)
    # The paper's labels above its points, ours below: the two curves are often close.
    offset = (4, -9) if look.source == "ours" else (4, 4)
    for (setting, _), x, y in zip(points, xs, ys, strict=True):
        label = axes.annotate(format_value(setting), (x, y), xytext=offset, textcoords="offset points")
        label.set(fontsize=7, color=look.colour)


def _point(row: Mapping[str, Any], key: str, source: str) -> tuple[float, float] | None:
    """Natural and robust accuracy; ours only where both are over the same images."""
    natural, robust = figure(row, "natural"), figure(row, key)
    if source == "ours":
        same = on_same_images(natural, robust)
        return same[:2] if same else None
    found = natural.get(source), robust.get(source)
    return None if found[0] is None or found[1] is None else (found[0], found[1])


def _panels(picture: "Figure", count: int, *, height: float, width: float = 2.6) -> "list[Axes]":
    across = min(count, _PANELS_IN_A_ROW)
    down = -(-count // across)
    picture.set_size_inches(max(0.7 + width * across, 4.5), 0.6 + height * down)
    grid = picture.subplots(down, across, sharex=True, sharey=True, squeeze=False)
    panels = [axes for line in grid for axes in line]
    for spare in panels[count:]:
        spare.remove()
    return panels[:count]


def _series(part: Mapping[str, Any]) -> dict[str, list[Mapping[str, Any]]]:
    """The rows that have a setting, by the curve they belong to, in the setting's order."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    for row in part["rows"]:
        if row.get("x") is not None:
            found.setdefault(str(row.get("series") or "all"), []).append(row)
    return {name: sorted(rows, key=lambda row: float(row["x"])) for name, rows in found.items()}


def _looks(place: int, palette: Palette) -> list[_Look]:
    colour, marker = palette.series[place % len(palette.series)], _MARKERS[place % len(_MARKERS)]
    return [_Look(colour=colour, marker=marker, source=source) for source in reversed(_STYLES)]


def _title(axes: "Axes", column: Mapping[str, Any], palette: Palette) -> None:
    axes.set_title(column["title"], color=palette.bad if column["level"] in KNOWING else palette.ink)


def _scale_x(axes: "Axes", part: Mapping[str, Any]) -> None:
    values = sorted({float(row["x"]) for row in part["rows"] if row.get("x") is not None})
    axes.set_xlabel(part.get("x_title") or "x")
    if len(values) > 1 and values[0] > 0 and values[-1] >= _LOGARITHMIC * values[0]:
        axes.set_xscale("log")
        axes.minorticks_off()
        axes.set_xticks(values, [format_value(value) for value in values])
    elif len(values) <= 6:
        axes.set_xticks(values, [format_value(value) for value in values])


def _scale_accuracy(axes: "Axes", part: Mapping[str, Any]) -> None:
    """Accuracies start at zero, whatever they are: a cut axis makes small differences large."""
    if part["unit"] == "%":
        bottom, top = axes.get_ylim()
        # A difference may be negative, an accuracy may not, whatever its band.
        lowest = bottom if any(column.get("difference") for column in part["columns"]) else 0.0
        axes.set_ylim(min(lowest, -2.5), 102.5 if top > 50 else max(top, 5.0))


def _legend(
    picture: "Figure",
    series: Sequence[str],
    flat: Sequence[str],
    palette: Palette,
    *,
    bands: str | None = None,
) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles: list[Line2D | Patch] = []
    words: list[str] = []
    for place, name in enumerate(series):
        look = _looks(place, palette)[0]
        handles.append(Line2D([], [], color=look.colour, marker=look.marker, markersize=4.5))
        words.append(name)
    for name in dict.fromkeys(flat):
        handles.append(Line2D([], [], color=palette.quiet, linewidth=1))
        words.append(name)
    for source, style in _STYLES.items():
        handles.append(Line2D([], [], color=palette.ink, linestyle=style, linewidth=1.2))
        words.append(source)
    if bands:
        handles.append(Patch(color=palette.ink, alpha=0.2, linewidth=0))
        words.append(bands)
    numbers = [str(place) for place in range(len(words))]
    # What is said of the bands is long, and cut off where a narrow picture has it beside all the rest.
    across = 2 * int(picture.get_figwidth() / _BESIDE) if bands else _MOST_WORDS
    legend = picture.legend(
        handles, numbers, loc="outside lower center", ncols=min(len(words), across, _MOST_WORDS)
    )
    # Set afterwards: a word that begins with an underscore would be left out.
    for text, word in zip(legend.get_texts(), words, strict=True):
        text.set_text(word)
