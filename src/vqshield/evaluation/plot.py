"""The plots of an evaluation: accuracy under each attack, with other budgets, and of each class."""

import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from vqshield.core.display_names import NONE, display_name
from vqshield.evaluation.summary import ALL, EvaluationSummary
from vqshield.reports.plots import LIGHT, Plot, dots, name_rows, percent_axis
from vqshield.reports.text import percent

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MARKERS = "Dos^vPX"
_MOST_CLASSES = 20


def attacks_plot(summary: EvaluationSummary, text: str) -> Plot:
    """A dot per attack and defense, the main defense first; text: the finding."""
    others = [name for name in summary.manifest.measured if name != summary.main]
    defenses = [summary.main, *others]
    attacks = dict.fromkeys(row.attack for row in summary.rows)
    if len(summary.manifest.attacks) == 1:
        attacks.pop(ALL, None)  # the same as the only attack or suite

    def draw(picture: "Figure", stacked: bool) -> None:
        height = 1.1 + 0.12 * len(attacks) * (2 + len(defenses))
        picture.set_size_inches((4.3, height) if stacked else (11.0, height))
        axes = picture.subplots()
        for number, defense in enumerate(defenses):
            shift = 0.6 * ((number + 0.5) / len(defenses) - 0.5)
            found = {place + shift: summary.row(defense, attack) for place, attack in enumerate(attacks)}
            rows = {place: row for place, row in found.items() if row is not None}
            color, marker = (each[number % len(each)] for each in (LIGHT.series, _MARKERS))
            dots(axes, rows, color, marker=marker, size=7 if number == 0 else 4.5,
                 label=display_name(defense))  # fmt: skip
        name_rows(axes, [_title(attack, 20 if stacked else 44) for attack in attacks])
        percent_axis(axes, along="x")
        if len(defenses) > 1:
            picture.legend(loc="outside lower center", ncols=min(len(defenses), 2 if stacked else 5))

    return Plot("attacks", text, draw)


def curve_plot(summary: EvaluationSummary) -> Plot:
    """Accuracy of the main defense under its strongest attack over the attack's budget."""
    rows, ball = summary.curve or (), summary.manifest.ball
    scale, unit = (255, " in 1/255") if ball.norm == "linf" else (1, "")

    def draw(picture: "Figure", stacked: bool) -> None:
        picture.set_size_inches((4.3 if stacked else 9.0, 3.2))
        axes = picture.subplots()
        axes.errorbar(
            [scale * row.eps for row in rows], [100 * row.mean for row in rows],
            yerr=[196 * row.standard_error for row in rows], color=LIGHT.series[0], marker="o",
            markersize=5, elinewidth=1.4,
        )  # fmt: skip
        axes.set_xlim(left=0)
        axes.set_xlabel(f"budget, {ball.norm}{unit}")
        percent_axis(axes)

    what = f"{display_name(summary.main)} under {rows[-1].attack}, first {rows[-1].n} images"
    means = ", ".join(f"{percent(row.mean)} %" for row in rows)
    return Plot("curve", f"{what}, from no budget to twice that of the other results: {means}.", draw)


def classes_plot(classes: Mapping[int, tuple[int, Sequence[float]]], names: Sequence[str]) -> Plot:
    """Bars of each class, clean and attacked; of many classes, those with most images."""
    most = sorted(classes, key=lambda label: (-classes[label][0], label))[:_MOST_CLASSES]
    shown = {label: classes[label] for label in sorted(most)}

    def draw(picture: "Figure", stacked: bool) -> None:
        picture.set_size_inches((4.3 if stacked else 9.0, 1.1 + 0.3 * len(shown)))
        axes = picture.subplots()
        for number, kind in enumerate(("clean", "under the strongest attack")):
            values = [100 * held[number] for _, held in shown.values() if len(held) > number]
            if values:
                places = [place + 0.36 * (number - 0.5) for place in range(len(shown))]
                axes.barh(places, values, height=0.34, color=LIGHT.series[number], label=kind)
        titles = [names[label] if label < len(names) else f"class {label}" for label in shown]
        counts = [count for count, _ in shown.values()]
        name_rows(axes, [f"{title[:24]} ({count})" for title, count in zip(titles, counts, strict=True)])
        percent_axis(axes, along="x")
        picture.legend(loc="outside lower center", ncols=2)

    attacked = any(len(held) > 1 for _, held in shown.values())
    under = ", clean and under the strongest attack on each image" if attacked else ""
    return Plot("classes", f"Accuracy on each class{under} (in brackets: how many images it has).", draw)


def _title(attack: str, width: int) -> str:
    """The name of an attack in several lines."""
    known = {NONE: "clean", ALL: "strongest of all attacks"}
    words = known.get(attack, attack.replace(":", ": ").replace(",", ", "))
    return "\n".join(textwrap.wrap(words, width)[:4])
