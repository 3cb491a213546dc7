"""The picture of a ladder: accuracy on every rung, and over the calls of query attacks."""

from typing import TYPE_CHECKING

from vqshield.ladders.rungs import RUNGS
from vqshield.ladders.study import MAIN, LadderSummary
from vqshield.reports.plots import LIGHT, Plot, plot

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MARKERS = "osD^vPX"
_QUERIES = {"score": "-", "decision": "--"}


def ladder_plot(summary: LadderSummary) -> Plot:
    """Two panels, a colour per subject: accuracy over rungs, and over the calls of query attacks."""
    text = (
        "Accuracy on every rung of the ladder, and over the calls of query attacks, a colour per "
        "subject. The values are in the table."
    )
    return plot("ladder", text, lambda picture, stacked: _draw(picture, summary, stacked=stacked))


def _draw(picture: "Figure", summary: LadderSummary, *, stacked: bool) -> None:
    picture.set_size_inches((5.2, 7.6) if stacked else (10.4, 4.0))
    rungs, queries = picture.subplots(*((2, 1) if stacked else (1, 2))).flat
    _draw_rungs(rungs, summary)
    _draw_queries(queries, summary)
    for axes in (rungs, queries):
        axes.set_ylim(-2, 102)
        axes.set_yticks(range(0, 101, 25))
        axes.set_ylabel("accuracy in %")
    handles, labels = rungs.get_legend_handles_labels()
    picture.legend(handles, labels, loc="outside lower center", ncols=min(len(labels), 2 if stacked else 4))


def _draw_rungs(axes: "Axes", summary: LadderSummary) -> None:
    subjects = summary.plan.subjects
    rungs = [rung.name for rung in RUNGS if any(row.rung == rung.name for row in summary.rows)]
    for number, subject in enumerate(subjects):
        rows = {place: summary.row(rung, subject.name) for place, rung in enumerate(rungs)}
        drawn = [(place, row) for place, row in rows.items() if row is not None]
        shift = 0.12 * (number - (len(subjects) - 1) / 2)
        axes.errorbar(
            [place + shift for place, _ in drawn],
            [100 * row.mean for _, row in drawn],
            yerr=[100 * row.standard_error for _, row in drawn],
            color=LIGHT.series[number % len(LIGHT.series)],
            marker=_MARKERS[number % len(_MARKERS)],
            linestyle="none",
            elinewidth=1.2,
            markersize=8 if subject.name == MAIN else 5,
            label="this model" if subject.name == MAIN else subject.name,
        )
    axes.set_xticks(range(len(rungs)), rungs, rotation=30, ha="right")
    axes.set_title("Accuracy under each attacker, queries after the most calls")


def _draw_queries(axes: "Axes", summary: LadderSummary) -> None:
    for number, subject in enumerate(summary.plan.subjects):
        natural = summary.row("natural", subject.name)
        for rung, line in _QUERIES.items():
            rows = [row for row in summary.rows if (row.rung, row.subject) == (rung, subject.name)]
            points = [(row.calls or 0, 100 * row.mean) for row in rows]
            if natural is not None and points:
                points = [(0, 100 * natural.mean), *points]
            axes.plot(
                [calls for calls, _ in points],
                [accuracy for _, accuracy in points],
                color=LIGHT.series[number % len(LIGHT.series)],
                marker=_MARKERS[number % len(_MARKERS)],
                linestyle=line,
                markersize=4,
            )
    axes.set_xlabel("calls of the model per image, every draw counted")
    axes.set_title("Queries by score (solid) and by decision (dashed)")
