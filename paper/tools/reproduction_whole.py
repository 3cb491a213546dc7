"""The tables of docs/reproduction.md about the whole: what was run, how far, how close, what is missing."""

from collections.abc import Callable, Sequence

from reproduction_values import (
    DATA,
    asked,
    begun,
    compared,
    images,
    mean_distance,
    missing,
    most_left,
    part,
    place,
    planned,
    rows,
    suite,
    summary,
)
from tables import listed, machine, signed, table
from vqshield.reports.text import duration
from vqshield_paper.reports.comparison import RULE, distance
from vqshield_paper.reproduction.experiments import experiment, list_experiments
from vqshield_paper.reproduction.model import Column, PartSummary, Summary
from vqshield_paper.reproduction.parts import AccuracyPart, Part

NOT_RUN = "not run"


def whole() -> str:
    """One line per table or plot: how far it got, and how close it is."""
    heads = ["id", "what", "result", "mean distance from the paper (furthest)", "adaptive", "time"]
    done = _done()
    return table(
        heads,
        [_line(id) for id in list_experiments()],
        f"{RULE} Distances of a column in points (F8: nats). Adaptive: the "
        f"highest accuracy of any defense under a suite of adaptive attacks, N images. "
        f"{_drawn(done[0].seed)}; {machine(done[0].machine or {})}. Time: of the work alone, without "
        "loading, and no benchmark; several processes shared the GPU, and the time of each counts; all "
        f"together {duration(_seconds(done))}.",
    )


def _done() -> list[Summary]:
    return [summary(id) for id in list_experiments() if begun(id)]


def _drawn(seed: int | None) -> str:
    runs = {value.runs for row in rows(part("T2")) for value in row.values.values() if value.runs is not None}
    return f"Means of {listed(str(count) for count in sorted(runs))} runs, seed {seed}"


def _seconds(done: Sequence[Summary]) -> float:
    """F6a and F9 count the time of F4 and F5 once more."""
    return sum(each.seconds for each in done if each.id not in ("F6a", "F9"))


def _line(id: str) -> list[str]:
    states = {place(plan): _status(plan, found) for plan, found in planned(id)}
    shown = [f"{where}: {state}" for where, state in states.items() if state != NOT_RUN]
    if left := [where for where, state in states.items() if state == NOT_RUN]:
        shown.append(f"{', '.join(left)}: {NOT_RUN}")
    distances, adaptive, time = "", "", ""
    if begun(id):
        parts = summary(id).parts
        distances = "; ".join(
            _data(found, parts) + _distance(found, column, deltas)
            for found in parts
            for column, deltas in compared(found)
        )
        adaptive = "; ".join(
            _data(found, parts) + _adaptive(found) for found in parts if most_left(found) is not None
        )
        time = duration(summary(id).seconds)
    return [id, experiment(id).title, "; ".join(shown), distances, adaptive, time]


def _status(plan: Part, found: PartSummary | None) -> str:
    if found is None or found.status == NOT_RUN:
        return NOT_RUN
    count, wanted = images(found), asked(plan)
    far = distance(found)
    if wanted is None or not count:
        return found.status if far is None else far.verdict
    words = f"{count:,} images" if count == wanted else f"**{count:,} of {wanted:,} images**"
    if found.status == "complete":
        return f"{'complete' if far is None else far.verdict}, {words}"
    cells = len(missing(found))
    shown = f", {cells} cell{'' if cells == 1 else 's'} missing" if cells else ""
    return f"**partial**, {words}{shown}, {_without_suite(plan, found)}"


def _without_suite(plan: Part, found: PartSummary) -> str:
    wanted = isinstance(plan, AccuracyPart) and plan.adaptive_count
    return "no adaptive value" if wanted and not images(found, adaptive=True) else "not all adaptive values"


def _distance(found: PartSummary, column: Column, deltas: dict[str, float]) -> str:
    digits = 1 if found.unit else 2
    furthest = max(deltas.values(), key=abs)
    return f"{column.title} {mean_distance(deltas):.{digits}f} ({signed(furthest, digits)})"


def _data(found: PartSummary, parts: Sequence[PartSummary]) -> str:
    """Which data set a value is of, where that is not plain."""
    if len({_set(each) for each in parts}) == 1:
        return ""
    return f"{DATA[_set(found)]}: "


def _set(found: PartSummary) -> str:
    """The data set that a part is about, whichever images replace it; views are named F4-cifar10."""
    return found.name.rpartition("-")[2]


def _adaptive(found: PartSummary) -> str:
    return f"{most_left(found):.1f} % (`{suite(found)}`, N = {images(found, adaptive=True):,})"


WHOLE_TABLES: dict[str, Callable[[], str]] = {"reproduction-whole": whole}
