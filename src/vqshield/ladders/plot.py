"""The picture of a ladder: accuracy under each attacker, over queries, and over repeated submissions."""

from typing import TYPE_CHECKING

from vqshield.ladders.rungs import RUNGS
from vqshield.ladders.study import MAIN, LadderSummary
from vqshield.reports.plots import LIGHT, Plot, dots, name_rows, percent_axis

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MARKERS = "osD^vPX"
_QUERIES = {"score": "Score-based queries", "decision": "Decision-based queries"}


def ladder_plot(summary: LadderSummary, text: str) -> Plot:
    """A dot per attacker and subject, and a panel per kind of query attack; text: the finding."""
    return Plot("ladder", text, lambda picture, stacked: _draw(picture, summary, stacked=stacked))


def tries_plot(summary: LadderSummary, text: str) -> Plot:
    """Accuracy of the first subject over the number of times that an image may be sent."""

    def draw(picture: "Figure", stacked: bool) -> None:
        picture.set_size_inches((4.3, 3.4) if stacked else (7.2, 3.4))
        axes = picture.subplots()
        for number, rung in enumerate(RUNGS):
            row = summary.row(rung.name)
            if row is not None:
                percents = [100 * each for each in row.tries]
                _line(axes, [*map(float, summary.tries)], percents, number, label=rung.title)
        axes.set_xscale("log")
        axes.set_xticks(summary.tries, [*map(str, summary.tries)], minor=False)
        axes.set_xticks([], minor=True)
        axes.set_xlabel("times that an image may be sent")
        percent_axis(axes)
        picture.legend(
            loc="outside right upper" if not stacked else "outside lower center", ncols=1 + stacked
        )

    return Plot("tries", text, draw)


def _draw(picture: "Figure", summary: LadderSummary, *, stacked: bool) -> None:
    subjects = summary.plan.subjects
    rungs = [rung for rung in RUNGS if any(row.rung == rung.name for row in summary.rows)]
    kinds = [kind for kind in _QUERIES if any(row.rung == kind for row in summary.rows)]
    height = 1.2 + 0.095 * len(rungs) * (2 + len(subjects))
    picture.set_size_inches((4.3, height + 2.4 * len(kinds)) if stacked else (11.0, max(height, 3.4)))
    shape, ratios = (1 + len(kinds), 1), [height, *[2.2] * len(kinds)]
    if stacked:
        panels = picture.subplots(*shape, squeeze=False, height_ratios=ratios)
    else:
        panels = picture.subplots(*shape[::-1], squeeze=False, width_ratios=[1.5, *[1] * len(kinds)])
    attackers, *queries = panels.flat
    for number, subject in enumerate(subjects):
        shift = 0.7 * ((number + 0.5) / len(subjects) - 0.5)
        found = {place: summary.row(rung.name, subject.name) for place, rung in enumerate(rungs)}
        rows = {place + shift: row for place, row in found.items() if row is not None}
        dots(attackers, rows, _colour(number), marker=_MARKERS[number % len(_MARKERS)],
             size=7 if subject.name == MAIN else 4.5,
             label=subject.name)  # fmt: skip
        for axes, kind in zip(queries, kinds, strict=True):
            points = [row for row in summary.rows if (row.rung, row.subject) == (kind, subject.name)]
            start = [row for row in [summary.row("natural", subject.name)] if row is not None and points]
            accuracies = [100 * row.mean for row in (*start, *points)]
            _line(axes, [float(row.calls or 0) for row in (*start, *points)], accuracies, number)
    name_rows(attackers, [rung.title for rung in rungs])
    percent_axis(attackers, along="x")
    attackers.set_title("Under each attacker", loc="left")
    for axes, kind in zip(queries, kinds, strict=True):
        percent_axis(axes)
        axes.set_xlabel("model calls per image")
        axes.set_title(_QUERIES[kind], loc="left")
    if len(subjects) > 1:
        handles, labels = attackers.get_legend_handles_labels()
        picture.legend(
            handles, labels, loc="outside lower center", ncols=min(len(labels), 2 if stacked else 6)
        )


def _line(axes: "Axes", places: list[float], percents: list[float], number: int, label: str = "") -> None:
    marker = _MARKERS[number % len(_MARKERS)]
    axes.plot(places, percents, color=_colour(number), marker=marker, markersize=4, label=label)


def _colour(number: int) -> str:
    return LIGHT.series[number % len(LIGHT.series)]
