"""The tables of docs/reproduction.md about the whole: what was run, how far, how close; and T1 to T5."""

from collections.abc import Callable
from functools import partial
from typing import Any

from certificate_tables import BOUNDS, machine, table
from reproduction_curves import CURVE_TEXTS
from reproduction_divergences import DIVERGENCE_TEXTS
from reproduction_findings import FINDINGS
from reproduction_informed import INFORMED
from reproduction_records import (
    ADAPTIVE,
    DATA,
    Part,
    asked,
    begun,
    compared,
    images,
    listed,
    mean_distance,
    missing,
    most_left,
    part,
    place,
    planned,
    rows,
    same_order,
    signed,
    summary,
)
from vqshield.reproduction.accuracy import AccuracyPart
from vqshield.reproduction.files import experiment, list_experiments
from vqshield.reproduction.part import Part as PlannedPart

from vqshield.reports.reproduction.markdown import escape_markdown, render_markdown
from vqshield.reports.reproduction.provenance import duration
from vqshield.reproduction import published

NOT_RUN = "not run"


def whole() -> str:
    """One line a table or figure: how far it got, and how close it is."""
    heads = ["id", "what", "status", "mean distance from the paper (furthest)", "adaptive", "time"]
    lines = table(heads, [_line(id) for id in list_experiments()])
    done = [summary(id) for id in list_experiments() if begun(id)]
    used = done[0]["machine"]
    return "\n".join(
        [
            *lines,
            f"\nDistances in points (F8: nats), over all cells that the paper has too. Adaptive: the most "
            f"that a suite of attacks which know of the shield leaves of any defense, N images. "
            f"{_drawn(done[0]['seed'])}; {machine(used)}. Time: of the work alone, without loading, and no "
            "benchmark; several processes shared the GPU, and the time of each counts; all together "
            f"{duration(_seconds(done))}.",
        ]
    )


def _drawn(seed: int) -> str:
    runs = {each["runs"] for row in rows(part("T2")) for each in row["figures"].values() if "runs" in each}
    return f"Means of {listed(str(count) for count in sorted(runs))} runs, seed {seed}"


def _seconds(done: list[dict[str, object]]) -> float:
    """F9 counts the time of F4 and F5 once more."""
    return sum(float(str(each["seconds"])) for each in done if each["id"] != "F9")


def _line(id: str) -> list[str]:
    states = {place(plan): _status(plan, found) for plan, found in planned(id)}
    shown = [f"{where}: {state}" for where, state in states.items() if state != NOT_RUN]
    if left := [where for where, state in states.items() if state == NOT_RUN]:
        shown.append(f"{', '.join(left)}: {NOT_RUN}")
    distances, adaptive, time = "", "", ""
    if begun(id):
        parts = summary(id)["parts"]
        distances = "; ".join(
            _data(found, parts) + _distance(found, each) for found in parts for each in compared(found)
        )
        adaptive = "; ".join(_adaptive(found) for found in parts if most_left(found) is not None)
        time = duration(summary(id)["seconds"])
    return [id, experiment(id).title, "; ".join(shown), distances, adaptive, time]


def _status(plan: PlannedPart, found: Part | None) -> str:
    if found is None or found["status"] == NOT_RUN:
        return NOT_RUN
    count, wanted = images(found), asked(plan)
    if wanted is None or not count:
        return str(found["status"])
    words = f"{count:,} images" if count == wanted else f"**{count:,} of {wanted:,} images**"
    if found["status"] == "complete":
        return f"complete, {words}"
    return f"**partial**, {words}, {len(missing(found))} cells missing, {_without_suite(plan, found)}"


def _without_suite(plan: PlannedPart, found: Part) -> str:
    wanted = isinstance(plan, AccuracyPart) and plan.adaptive_count
    return "no adaptive figure" if wanted and not images(found, adaptive=True) else "adaptive figures"


def _distance(found: Part, column: tuple[str, str, dict[str, float]]) -> str:
    _, title, deltas = column
    digits = 1 if found["unit"] else 2
    furthest = max(deltas.values(), key=abs)
    return f"{title} {mean_distance(deltas):.{digits}f} ({signed(furthest, digits)})"


def _data(found: Part, parts: list[Part]) -> str:
    """Which data set a figure is of, where that is not plain."""
    several = len({each["data"]["name"] for each in parts if each["data"]}) > 1
    return f"{DATA[found['data']['name']]}: " if several else ""


def _adaptive(found: Part) -> str:
    return f"{most_left(found):.1f} % (`{_suite(found)}`, N = {images(found, adaptive=True):,})"


def measured(id: str) -> str:
    """A table as its report shows it, and whose figures they are; one for every data set."""
    found = summary(id)
    return "\n\n".join(_measured({**found, "parts": [each]}) for each in found["parts"])


def _measured(found: dict[str, Any]) -> str:
    text = render_markdown(typed(found), {})
    for key, name in BOUNDS.items():
        text = text.replace(escape_markdown(key), name)
    lines = [line for line in text.splitlines() if line.startswith("|")]
    (only,) = found["parts"]
    if only["classifier"]:
        name = str(only["classifier"]["name"]).removesuffix(".safetensors")
        lines.append(
            f"\nImages of {only['data']['name']}, {name}, N = {images(only):,}. {_order(only)}".rstrip()
        )
    return "\n".join(lines)


def _order(found: Part) -> str:
    """Budgets are no defenses: a figure against them has no such order."""
    counts = {title: same_order(found, key) for key, title, _ in compared(found)}
    if any(each["x"] is not None for each in rows(found)):
        return ""
    shown = "; ".join(f"{title}, {alike} of {pairs}" for title, (alike, pairs) in counts.items())
    return f"Pairs of defenses that stand in the same order as in the paper: {shown}."


def inconsistent() -> str:
    """What in the paper contradicts itself, with the tables and figures concerned."""
    concerned: dict[str, list[str]] = {}
    for id in published.ids():
        for text in published.inconsistencies(id):
            concerned.setdefault(text, []).append(id)
    return "\n".join(f"- **{', '.join(ids)}**: {escape_markdown(text)}" for text, ids in concerned.items())


def unreached() -> str:
    """What the paper has and the records do not."""
    lines = []
    for id in list_experiments():
        absent = [place(plan) for plan, found in planned(id) if found is None]
        words = [f"{listed(absent)}: {NOT_RUN}"] if absent else []
        words += [
            words for plan, found in planned(id) if found is not None for words in _short_of(plan, found)
        ]
        if words:
            lines.append(f"- {id}: {'. '.join(words)}.")
    return "\n".join([*lines, _suites(), _commits()])


def _short_of(plan: PlannedPart, found: Part) -> list[str]:
    words = []
    wanted = asked(plan)
    if wanted is not None and 0 < images(found) < wanted:
        words.append(f"{images(found):,} of {wanted:,} images")
    if cells := missing(found):
        words.append(f"missing are {listed(cells)}")
    if found["status"] == "partial":
        words.append(_without_suite(plan, found))
    return [f"{place(plan)}: {'; '.join(words)}"] if words else []


def _suites() -> str:
    counts: dict[str, list[str]] = {}
    for id in filter(begun, list_experiments()):
        for found in summary(id)["parts"]:
            if images(found, adaptive=True):
                counts.setdefault(_suite(found), []).append(f"{id} {images(found, adaptive=True):,}")
    shown = "; ".join(f"`{suite}`: {', '.join(each)}" for suite, each in counts.items())
    return f"- Attacks that know of the shield saw fewer images. {shown}."


def _suite(found: Part) -> str:
    return str(next(column["title"] for column in found["columns"] if column["key"] == ADAPTIVE))


def _commits() -> str:
    done = [summary(id) for id in list_experiments() if begun(id)]
    unknown = sum(each["commit"] is None for each in done)
    return (
        f"- {unknown} of {len(done)} records name no commit: the GPU ran an exported tree, which has no git. "
        "They name the version, and hold the experiment file word for word."
    )


REPRODUCTION_TABLES: dict[str, Callable[[], str]] = {
    "reproduction-whole": whole,
    **{f"reproduction-{id}": partial(measured, id) for id in ("T1", "T2", "T3", "T4", "T5", "E1", "F7")},
    "reproduction-inconsistent": inconsistent,
    "reproduction-unreached": unreached,
    **FINDINGS,
    **INFORMED,
    **CURVE_TEXTS,
    **DIVERGENCE_TEXTS,
}
