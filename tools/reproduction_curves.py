"""What docs/reproduction.md says of the figures: where curves are highest, how they bend, which is above."""

import math
from collections.abc import Callable, Iterable
from functools import partial

from certificate_tables import percent, table
from reproduction_records import (
    ADAPTIVE,
    MEASURED,
    Part,
    all_series,
    cell,
    compared,
    curve,
    images,
    mean_distance,
    most_left,
    part,
    read,
    row,
    rows,
    signed,
)

from vqshield.reproduction.published import published

WHOSE = {"paper": "the paper", "ours": "ours"}
NAMES = {"natural": "natural", "autoattack": "AutoAttack"}


def bends(id: str) -> str:
    """F4 and F5: the best x of every curve, the fall from there to the largest x, and distances."""
    found = part(id)
    symbol, last = found["x_title"], max(each["x"] for each in rows(found))
    heads = ["AutoAttack", *(f"best {symbol}: {who}" for who in WHOSE.values())]
    heads += [f"accuracy there, %: {who}" for who in WHOSE.values()]
    heads += [f"from there to {symbol} = {last}: {who}" for who in WHOSE.values()]
    lines = []
    for series in all_series(found):
        curves = [curve(found, series, "autoattack", who) for who in WHOSE]
        best = [_highest(points) for points in curves]
        there = [points[x] for points, x in zip(curves, best, strict=True)]
        falls = [signed(points[last] - most) for points, most in zip(curves, there, strict=True)]
        lines.append([series, *map(str, best), *(f"{most:.1f}" for most in there), *falls])
    return "\n".join([*table(heads, lines), f"\n{_distances(found)} {_left(found)}"])


def _highest(points: dict[float, float]) -> float:
    return max(points, key=lambda x: points[x])


def _left(found: Part) -> str:
    suite = next(column["title"] for column in found["columns"] if column["key"] == ADAPTIVE)
    return (
        f"Attacks that know of the shield leave at most {most_left(found):.1f} % (`{suite}`, "
        f"N = {images(found, adaptive=True)})."
    )


def _distances(found: Part) -> str:
    """By curve: how far the points are from the paper's on average, and the furthest."""
    words = []
    for key, _, _ in compared(found):
        each = []
        for series in all_series(found):
            ours, paper = (curve(found, series, key, who) for who in ("ours", "paper"))
            deltas = {x: ours[x] - paper[x] for x in ours if x in paper}
            worst = _highest({x: abs(delta) for x, delta in deltas.items()})
            each.append(f"{series} {mean_distance(deltas):.1f} ({signed(deltas[worst])} at {worst:g})")
        words.append(f"{NAMES[key]}: {', '.join(each)}")
    return f"Mean distance from the paper in points, and the furthest point, {'; '.join(words)}."


def noise(id: str) -> str:
    """F6b and A1: what the strongest noise changes."""
    found = part(id)
    last = max(each["x"] for each in rows(found))
    heads = [f"points from no noise to {last}/255"]
    heads += [f"{name}: {who}" for name in NAMES.values() for who in WHOSE.values()]
    lines = []
    for series in all_series(found):
        curves = [curve(found, series, key, who) for key in NAMES for who in WHOSE]
        lines.append([series, *(signed(points[last] - points[0]) for points in curves)])
    return "\n".join([*table(heads, lines), f"\n{_distances(found)} {_left(found)}"])


def once() -> str:
    """A1 against F6b: noise in the codebook alone, or in the assignment too."""
    one, two = part("A1"), part("F6b")
    strongest = max(each["x"] for each in rows(one))
    series = all_series(one)
    heads = ["once (A1) less twice (F6b)", "above at", "below at"]
    heads += [f"{name}, at {strongest}/255" for name in series]
    lines = []
    for key, title in NAMES.items():
        for who, whom in WHOSE.items():
            pairs = [(curve(one, name, key, who), curve(two, name, key, who)) for name in series]
            apart = [first[x] - second[x] for first, second in pairs for x in first if x]
            counts = [sum(each > 0 for each in apart), sum(each < 0 for each in apart)]
            ends = [signed(first[strongest] - second[strongest]) for first, second in pairs]
            lines.append([f"{title}: {whom}", *(f"{count} of {len(apart)}" for count in counts), *ends])
    return "\n".join(table(heads, lines))


def gaps() -> str:
    """F9: whose gap is the largest, whose the smallest, point by point."""
    heads, lines = ["gap", "points", "largest", "smallest"], []
    for name in ("F4-cifar10", "F5-cifar10"):
        found = part("F9", name=name)
        for who, whom in WHOSE.items():
            gap = {series: curve(found, series, "gap", who) for series in all_series(found)}
            places = list(next(iter(gap.values())))
            ends = [_winners(gap, places, choose) for choose in (max, min)]
            lines.append([f"over {found['x_title']}: {whom}", str(len(places)), *ends])
    return "\n".join(table(heads, lines))


def _winners(
    gap: dict[str, dict[float, float]], places: list[float], choose: Callable[[Iterable[float]], float]
) -> str:
    """How often each curve is at one end; points where two are equal count for neither."""
    found = []
    for x in places:
        end = choose(points[x] for points in gap.values())
        there = [series for series, points in gap.items() if points[x] == end]
        found.append(there[0] if len(there) == 1 else "equal")
    return ", ".join(f"{name} {found.count(name)}" for name in dict.fromkeys(found))


def bounds() -> str:
    """F7: what Proposition 1 gives away, and what it can give at all."""
    found = part("F7", name="cifar10")
    lost = {
        key: [cell(each, "accuracy")["ours"] - cell(each, key)["ours"] for each in rows(found)]
        for key in ("certified", "clopper_pearson")
    }
    draws = cell(rows(found)[0], "certified")["runs"]
    delta = read(f"{MEASURED}/F7/cifar10/randdisc-codes25/manifest.json")["delta"]
    slack = math.sqrt(2 * math.log(1 / delta) / draws)
    over = []
    for each in published("F7").figures:
        natural = [other for other in published("T2").figures if other.defense == each.defense]
        accuracy = next((other.value for other in natural if other.measure == "natural"), None)
        if (each.data, each.x) == ("cifar10", 0) and accuracy is not None:
            ceiling = (1 - slack) * accuracy
            verdict = "above" if each.value > ceiling else "below"
            title = row(found, str(each.defense))["series"]
            over.append(f"{title} {percent(each.value)} %, {verdict} {percent(ceiling)} %")
    return (
        f"Points between measured and certified accuracy on CIFAR-10, ours: Proposition 1 "
        f"{_span(lost['certified'])}, Clopper–Pearson {_span(lost['clopper_pearson'])}. With m = {draws:,} "
        f"and δ = {delta:g} the slack "
        f"is {slack:.3f}, so Proposition 1 certifies at most {1 - slack:.3f} times the accuracy of the same "
        f"draws. The paper's figures at ε = 0 on CIFAR-10, beside that multiple of its natural accuracy in "
        f"T2: {'; '.join(over)}."
    )


def _span(values: list[float]) -> str:
    return f"{percent(min(values))} to {percent(max(values))}"


CURVE_TEXTS: dict[str, Callable[[], str]] = {
    "reproduction-F4": partial(bends, "F4"),
    "reproduction-F5": partial(bends, "F5"),
    "reproduction-F6b": partial(noise, "F6b"),
    "reproduction-A1": partial(noise, "A1"),
    "reproduction-A1-once": once,
    "reproduction-F9": gaps,
    "reproduction-F7-bounds": bounds,
}
