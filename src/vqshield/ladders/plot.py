"""The picture of a ladder: what is left on every rung, and over the calls of query attacks."""

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
    """Two panels: accuracy over rungs, a colour per subject; and over calls, by score solid, by decision
    dashed.
    """
    text = (
        "Accuracy on every rung of the ladder, and over the calls of query attacks, a colour per "
        "subject. The values are in the table."
    )
    return plot("ladder", text, lambda picture, stacked: _draw(picture, summary, stacked=stacked))


def _draw(picture: "Figure", summary: LadderSummary, *, stacked: bool) -> None:
    shape = (2, 1) if stacked else (1, 2)
    picture.set_size_inches((5.2, 7.6) if stacked else (10.4, 4.0))
    rungs, queries = picture.subplots(*shape).flat
    _draw_rungs(rungs, summary)
    _draw_queries(queries, summary)
    handles, labels = rungs.get_legend_handles_labels()
    picture.legend(handles, labels, loc="outside lower center", ncols=min(len(labels), 2 if stacked else 4))


def _draw_rungs(axes: "Axes", summary: LadderSummary) -> None:
    measured = [rung for rung in RUNGS if summary.row(rung.name) or _any(summary, rung.name)]
    beside = [
        0.12 * (number - (len(summary.plan.subjects) - 1) / 2) for number in range(len(summary.plan.subjects))
    ]
    for number, subject in enumerate(summary.plan.subjects):
        rows = [(place, summary.row(rung.name, subject.name)) for place, rung in enumerate(measured)]
        drawn = [(place, row) for place, row in rows if row is not None]
        axes.errorbar(
            [place + beside[number] for place, _ in drawn],
            [100 * row.mean for _, row in drawn],
            yerr=[100 * row.standard_error for _, row in drawn],
            color=LIGHT.series[number % len(LIGHT.series)],
            marker=_MARKERS[number % len(_MARKERS)],
            linestyle="none",
            elinewidth=1.2,
            markersize=8 if subject.name == MAIN else 5,
            label="this model" if subject.name == MAIN else subject.name,
        )
    axes.set_xticks(range(len(measured)), [rung.name for rung in measured], rotation=30, ha="right")
    axes.set_title("What each attacker leaves, queries after the most calls")
    _accuracy_axis(axes)


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
    axes.set_xlabel("calls of the model for an image, every draw counted")
    axes.set_title("Queries by score (solid) and by decision (dashed)")
    _accuracy_axis(axes)


def _accuracy_axis(axes: "Axes") -> None:
    axes.set_ylim(-2, 102)
    axes.set_yticks(range(0, 101, 25))
    axes.set_ylabel("accuracy in %")


def _any(summary: LadderSummary, rung: str) -> bool:
    return any(row.rung == rung for row in summary.rows)
