"""The plots of docs/ for update_docs.py: from paper/results/, as SVG that follows its reader into the dark.

A plot names the records that it shows; its file holds their digest, by which a test finds an old picture.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING

import recorded
from attack_tables import MEASURED
from reproduction_values import DATA, begun, summary
from reproduction_values import MEASURED as MEASURED_AGAIN
from tables import listed, percent
from threat_tables import LADDER, THREATS, TITLES, best_of
from vqshield.core.display_names import NONE, display_defense, display_name
from vqshield.demo.study import DemoSummary
from vqshield.evaluation.summary import EvaluationSummary
from vqshield.ladders.plot import ladder_plot
from vqshield.ladders.study import LadderSummary
from vqshield.leaderboards.study import BoardSummary
from vqshield.models.draws import Accuracy
from vqshield.reports.plots import LIGHT, Plot, dots, name_rows, percent_axis
from vqshield_paper.reports.comparison import AGREES, DIFFERS, distances, verdict
from vqshield_paper.reproduction.experiments import list_experiments
from vqshield_paper.reproduction.model import PartSummary

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

IMAGES = recorded.ROOT / "docs" / "images"
BOARD = "leaderboard-cifar10-resnet18"
SMALL_LADDER = "ladder-small-cifar10-hardened/summary.json"
_WIDTH = 8.2
_MOST = 62  # points that a distance is drawn up to
_TUNED = {"swrd": "swRD", "prd": "pRD", "randdisc": "RandDisc", "gaussian": "Gaussian noise"}
_ATTACKERS = {
    "natural": "clean", "transfer": "transfer", "ignorant": "defense-unaware", "score": "score queries",
    "decision": "decision queries", "white-box": "adaptive",
}  # fmt: skip


@dataclass(frozen=True)
class DocPlot:
    """A plot of a page, made from records of paper/results/: files, or folders with all that is in them."""

    make: Callable[[], Plot]
    records: tuple[str, ...]
    caption: str = ""

    def markdown(self) -> str:
        """The picture in a page of docs/."""
        plot = self.make()
        return f"![{plot.text}](images/{plot.name}.svg)" + (f"\n\n{self.caption}" if self.caption else "")

    def digest(self) -> str:
        """Of the records."""
        sums = hashlib.sha256()
        for record in self.records:
            place = recorded.RESULTS / record
            for path in [place] if place.is_file() else sorted(place.rglob("*.json*")):
                sums.update(path.read_bytes())
        return sums.hexdigest()[:16]

    def write(self) -> Path:
        """The file, with the digest of the records at its end."""
        plot = self.make()
        path = IMAGES / f"{plot.name}.svg"
        path.write_bytes(plot.svg + f"<!-- records {self.digest()} -->\n".encode())
        return path


def threats() -> Plot:
    """Every attacker against every defense of the ladder, the best of each marked."""
    summary = recorded.read(LadderSummary, LADDER)
    names = [each.name for each in summary.plan.subjects]
    names.sort(key=list(TITLES).index)
    rungs = [rung for rung in THREATS if any(row.rung == rung for row in summary.rows)]
    rows = {rung: {name: summary.row(rung, name) for name in names} for rung in rungs}

    def draw(picture: "Figure", stacked: bool) -> None:
        picture.set_size_inches(_WIDTH, 0.95 + 0.47 * len(rungs))
        axes = picture.subplots()
        for line, rung in enumerate(rungs):
            best = best_of(rows[rung]) if rung != "natural" else []
            for column, name in enumerate(names):
                _heat(axes, column, line, rows[rung][name], strong=name in best)
        _bare(axes, [fill(TITLES[name], 12) for name in names], [fill(THREATS[rung], 30) for rung in rungs])

    last = rows["white-box"]
    order = sorted((name for name in names if last[name]), key=lambda name: -last[name].mean)  # type: ignore[union-attr]
    shares = [f"{TITLES[name]} {percent(last[name].mean)} %" for name in order[:2]]  # type: ignore[union-attr]
    queried = best_of(rows["score"])
    text = (
        f"Accuracy under {len(rungs) - 1} attackers and on clean images, {len(names)} models. Against the "
        f"adaptive attacker {shares[0]} is highest, then {shares[1]}; under score-based queries "
        f"{listed(TITLES[name] for name in queried)} are highest."
    )
    return Plot("threats", text, draw)


def leaderboard() -> Plot:
    """The rows of the board, best first, under each attacker."""
    summary = _board()
    failed = {each.row.name for each in summary.rows if each.audit and each.audit.verdict == "failed"}
    results = sorted(
        summary.rows, key=lambda each: (each.row.name in failed, -(each.lowest.mean if each.lowest else 0))
    )
    rows = [
        (
            each.row.shown + (": audit failed" if each.row.name in failed else ""),
            not each.row.control,
            {rung: each.figure(rung) for rung in _ATTACKERS},
        )
        for each in results
    ]
    best, *others = (each for each in results if each.lowest)
    text = (
        f"{len(results)} defenses and baselines, best first. Only {best.row.shown} stays above "
        f"{percent(others[0].lowest.mean)} % under every attacker, with {percent(best.lowest.mean)} %."
    )
    return Plot("leaderboard", text, lambda picture, _: _dot_table(picture, rows, _ATTACKERS))


def hardening() -> Plot:
    """Defenses of the board before and after the classifier was fine-tuned behind them."""
    found = {each.row.name: each for each in _board().rows}
    pairs = {
        title: (found[name], found[f"{name}-tuned"])
        for name, title in _TUNED.items()
        if name in found and f"{name}-tuned" in found
    }
    shown = {rung: name for rung, name in _ATTACKERS.items() if rung != "decision"}

    def draw(picture: "Figure", stacked: bool) -> None:
        picture.set_size_inches(_WIDTH, 0.85 + 0.4 * len(pairs))
        panels = picture.subplots(1, len(shown), sharey=True)
        for axes, (rung, name) in zip(panels, shown.items(), strict=True):
            for place, pair in enumerate(pairs.values()):
                start, end = (each.figure(rung) for each in pair)
                if start is None or end is None:
                    continue
                axes.plot([100 * start.mean, 100 * end.mean], [place, place], color=LIGHT.ours, linewidth=1.2)
                _dots(axes, {place: start}, filled=False)
                _dots(axes, {place: end}, filled=True)
                _number(axes, place, end, start)
            _panel(axes, name)
        name_rows(panels[0], list(pairs))

    swrd = [each.figure(rung) for rung in ("natural", "white-box") for each in pairs["swRD"]]
    clean, tuned, weak, still = (percent(each.mean) for each in swrd if each is not None)
    text = (
        f"Accuracy with a classifier as it is (hollow) and one fine-tuned behind the defense (filled). With "
        f"swRD, clean accuracy rises from {clean} to {tuned} %, adaptive from {weak} to only {still} %."
    )
    return Plot("hardening", text, draw)


def attacks() -> Plot:
    """Every attack of the run against every defense."""
    summary = recorded.read(EvaluationSummary, f"{MEASURED}/summary.json")
    defenses = list(dict.fromkeys(row.defense for row in summary.rows if row.defense != NONE))
    by = {(row.defense, row.attack): row for row in summary.rows}
    names = list(dict.fromkeys(row.attack for row in summary.rows if (defenses[0], row.attack) in by))
    names.sort(key=lambda name: -max(by[defense, name].mean for defense in defenses))
    rows = [(_attack(name), True, {each: by.get((each, name)) for each in defenses}) for name in names]
    titles = {each: display_defense(each) for each in defenses}
    strongest = [f"{titles[each]} {percent(by[each, names[-1]].mean)} %" for each in defenses]
    text = (
        f"Accuracy of {len(defenses)} defenses under {len(names) - 1} attacks, the weakest first. Under the "
        f"strongest: {listed(strongest)}."
    )
    return Plot("attacks", text, lambda picture, _: _dot_table(picture, rows, titles))


def demo() -> Plot:
    """The demo's table."""
    summary = recorded.read(DemoSummary, "demo.json")
    heads = {"none": "clean", "transfer": "transfer", "ignorant": "defense-unaware",
             "score": "score queries", "adaptive": "adaptive"}  # fmt: skip
    names = list(dict.fromkeys(row.defense for row in summary.rows))
    accuracy = {
        (row.defense, row.threat): Accuracy(
            mean=row.robust, standard_error=row.standard_error, runs=row.runs, n=row.n
        )
        for row in summary.rows
    }
    rows = [
        (
            display_name(NONE) if name == NONE else name,
            name != NONE,
            {head: accuracy.get((name, head)) for head in heads},
        )
        for name in names
    ]
    most = max(names, key=lambda name: accuracy[name, "adaptive"].mean)
    text = (
        f"Accuracy of {len(names) - 1} defenses and of none under four attackers. Under the adaptive attack "
        f"none is above {percent(accuracy[most, 'adaptive'].mean)} % ({most})."
    )
    return Plot("demo-accuracies", text, lambda picture, _: _dot_table(picture, rows, heads))


def reproduction() -> Plot:
    """The mean distance of every experiment and data set from the paper."""
    found = {
        f"{id} {_place(part)}": (far, bool(part.stand_in))
        for id in list_experiments()
        if begun(id)
        for part, far in distances(summary(id))
    }
    names = list(found)

    def draw(picture: "Figure", stacked: bool) -> None:
        picture.set_size_inches(_WIDTH, 0.75 + 0.21 * len(names))
        axes = picture.subplots()
        for place, (far, other) in enumerate(found.values()):
            color = LIGHT.bad if far.verdict == "contradicted" else LIGHT.ours
            axes.plot([0, min(far.mean, _MOST)], [place, place], color=color, linewidth=1.2)
            axes.plot(min(far.mean, _MOST), place, "o", color=LIGHT.background if other else color,
                      markeredgecolor=color, markersize=5, zorder=3)  # fmt: skip
            digits = f"{far.mean:,.{0 if far.mean >= 100 else 1}f}{'' if far.unit == 'points' else ' %'}"
            axes.text(min(far.mean, _MOST) + 1, place, digits, va="center", fontsize=8, color=LIGHT.ink)
        for limit in (AGREES, DIFFERS):
            axes.axvline(limit, color=LIGHT.quiet, linewidth=1, linestyle="--")
        axes.set_xlim(0, _MOST + 6)
        axes.set_xticks([0, AGREES, DIFFERS, 50], ["0", f"{AGREES:g}", f"{DIFFERS:g}", "50"])
        axes.set_xlabel("mean distance from the paper, in points")
        axes.grid(visible=False)
        name_rows(axes, names)
        axes.tick_params(axis="y", labelsize=8, labelcolor=LIGHT.ink)

    counts = Counter(verdict(summary(id)) for id in list_experiments() if begun(id))
    wrong = [id for id in list_experiments() if begun(id) and verdict(summary(id)) == "contradicted"]
    text = (
        f"Mean distance of {len(names)} results from the paper. Experiments that agree: {counts['agrees']}, "
        f"differ: {counts['differs']}, are contradicted: {counts['contradicted']} ({listed(wrong)})."
    )
    return Plot("reproduction", text, draw)


def _place(part: PartSummary) -> str:
    """The data set of a part; views are named F4-cifar10."""
    source, _, name = part.name.rpartition("-")
    return DATA.get(name, name) + (f" from {source}" if source else "")


def ladder() -> Plot:
    """The ladder of the bundled classifier."""
    summary = recorded.read(LadderSummary, SMALL_LADDER)
    names = [each.name for each in summary.plan.subjects]
    ends = {name: summary.row("white-box", name) for name in names}
    left = {name: row.mean for name, row in ends.items() if row is not None}
    best = max(left, key=lambda name: left[name])
    text = (
        f"Accuracy of {listed(names)} under each attacker, and over queries. Under the adaptive attack "
        f"{best} has {percent(left[best])} %, model {percent(left['model'])} %."
    )
    plot = ladder_plot(summary, text)
    return Plot("ladder", plot.text, plot.draw)


@cache
def _board() -> BoardSummary:
    return BoardSummary.read(recorded.RESULTS / BOARD)


def _heat(axes: "Axes", column: int, line: int, row: Accuracy | None, *, strong: bool) -> None:
    """A cell that is the darker the higher the accuracy, pale enough for text in both themes."""
    from matplotlib.patches import Rectangle

    place = (column - 0.48, line - 0.46), 0.96, 0.92
    if row is not None:
        axes.add_patch(Rectangle(*place, facecolor=LIGHT.ours, alpha=0.04 + 0.5 * row.mean))
    if strong:
        axes.add_patch(Rectangle(*place, fill=False, edgecolor=LIGHT.ink, linewidth=1.2))
    text = "–" if row is None else percent(row.mean)
    axes.text(
        column, line, text, ha="center", va="center", color=LIGHT.ink, weight="bold" if strong else "normal"
    )


def _bare(axes: "Axes", columns: Sequence[str], lines: Sequence[str]) -> None:
    """Names on top and at the left, and nothing else around the cells."""
    axes.set_xlim(-0.5, len(columns) - 0.5)
    axes.set_ylim(len(lines) - 0.5, -0.5)
    axes.set_xticks(range(len(columns)), columns)
    axes.set_yticks(range(len(lines)), lines)
    axes.tick_params(labelcolor=LIGHT.ink)
    axes.xaxis.tick_top()
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)


def _dot_table(
    picture: "Figure",
    rows: Sequence[tuple[str, bool, Mapping[str, Accuracy | None]]],
    columns: Mapping[str, str],
) -> None:
    """A panel per column and a line per row: its name, whether its dots are filled, its accuracies."""
    picture.set_size_inches(_WIDTH, 0.75 + 0.27 * len(rows))
    panels = picture.subplots(1, len(columns), sharey=True)
    for axes, (key, title) in zip(panels, columns.items(), strict=True):
        for filled in (True, False):
            own = {place: found.get(key) for place, (_, kind, found) in enumerate(rows) if kind == filled}
            measured = {place: row for place, row in own.items() if row is not None}
            _dots(axes, measured, filled=filled)
            for place, row in measured.items():
                _number(axes, place, row)
        _panel(axes, title)
    name_rows(panels[0], [fill(name, 34) for name, *_ in rows])
    panels[0].tick_params(axis="y", labelsize=8, labelcolor=LIGHT.ink)


def _dots(axes: "Axes", rows: Mapping[float, Accuracy], *, filled: bool) -> None:
    """Accuracies with their intervals."""
    if rows:
        dots(axes, rows, LIGHT.ours, size=5)
    if not filled:
        means, hollow = [100 * row.mean for row in rows.values()], LIGHT.background
        axes.plot(means, list(rows), "o", color=hollow, markeredgecolor=LIGHT.ours, markersize=5, zorder=3)


def _number(axes: "Axes", place: float, row: Accuracy, *others: Accuracy) -> None:
    """An accuracy in digits, at the right of its dot and of others in its line."""
    side = 6 + max(100 * each.mean + 196 * each.standard_error for each in (row, *others))
    axes.text(side, place, percent(row.mean), va="center", fontsize=7, color=LIGHT.ink)


def _panel(axes: "Axes", title: str) -> None:
    percent_axis(axes, along="x", label="")
    axes.set_xlim(-6, 138)  # with room for the digits
    axes.set_xticks([0, 50, 100])
    axes.set_title(fill(title, 12), loc="left", fontsize=8)
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="x", labelsize=7)


def _attack(name: str) -> str:
    """An attack as people say it: PGD-100, EOT-10."""
    if not name.startswith("pgd:"):
        return {NONE: "no attack", "adaptive": "the best of all per image"}.get(name, name)
    values = dict(each.split("=") for each in name.removeprefix("pgd:").split(","))
    eot = f", EOT-{values['eot']}" if "eot" in values else ""
    return f"PGD-{values['steps']}{eot}" + (", defense-unaware" if values.get("surrogate") == NONE else "")


_BARS = "Accuracy in %; bars: intervals of 95 %."
DOC_PLOTS: dict[str, DocPlot] = {
    "threats-plot": DocPlot(
        threats, (LADDER,), "Accuracy in %; outlined: the best, and what is within two standard errors of it."
    ),
    "leaderboard-plot": DocPlot(leaderboard, (BOARD,), f"{_BARS} Hollow: baselines."),
    "hardening-plot": DocPlot(hardening, (BOARD,), f"{_BARS} Hollow: before, filled: after fine-tuning."),
    "attacks-plot": DocPlot(attacks, (f"{MEASURED}/summary.json",), _BARS),
    "demo-plot": DocPlot(demo, ("demo.json",), f"{_BARS} Hollow: no defense."),
    "reproduction-plot": DocPlot(
        reproduction,
        (MEASURED_AGAIN,),
        f"Up to {AGREES:g} points a result agrees, up to {DIFFERS:g} it differs, beyond it is contradicted "
        "(with %: of the paper's mean value). Hollow: other data than the paper's.",
    ),
    "ladder-plot": DocPlot(ladder, (SMALL_LADDER,)),
}
