"""What docs/reproduction.md says of the paper's figures: where curves are highest, how they bend, the KL."""

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import recorded
from recorded import Images, Machine
from reproduction_values import (
    MEASURED,
    Whose,
    all_series,
    compared,
    curve,
    images,
    mean_distance,
    most_left,
    part,
    row,
    rows,
    suite,
)
from tables import machine, named, percent, signed, table

from vqshield.plain import Json
from vqshield.reproduction import published
from vqshield.reproduction.model import PartSummary
from vqshield.runs.manifests import read_manifest
from vqshield.settings import parse_spec
from vqshield.studies.certification import CertificationManifest

WHOSE: dict[Whose, str] = {"paper": "the paper", "ours": "ours"}
NAMES = {"natural": "natural", "autoattack": "AutoAttack"}
BUDGETS = {"mnist": (0, 0.16, 0.32), "cifar10": (0, 8, 16)}
CHANNELS = {"mnist": 1, "cifar10": 3}
COVARIANCES = "kl-covariances-cifar10.json.gz"


def bends(id: str) -> str:
    """F4 and F5: the best x of every curve, the fall from there to the largest x, and distances."""
    found = part(id)
    symbol, last = found.x_title, _last(found)
    heads = ["AutoAttack", *(f"best {symbol}: {who}" for who in WHOSE.values())]
    heads += [f"accuracy there, %: {who}" for who in WHOSE.values()]
    heads += [f"from there to {symbol} = {last:g}: {who}" for who in WHOSE.values()]
    lines = []
    for series in all_series(found):
        curves = [curve(found, series, "autoattack", who) for who in WHOSE]
        best = [_highest(points) for points in curves]
        there = [points[x] for points, x in zip(curves, best, strict=True)]
        falls = [signed(points[last] - most) for points, most in zip(curves, there, strict=True)]
        lines.append([series, *(f"{x:g}" for x in best), *(f"{most:.1f}" for most in there), *falls])
    return "\n".join([*table(heads, lines), f"\n{_distances(found)} {_left(found)}"])


def _last(found: PartSummary) -> float:
    return max(each.x for each in rows(found) if each.x is not None)


def _highest(points: Mapping[float, float]) -> float:
    return max(points, key=lambda x: points[x])


def _left(found: PartSummary) -> str:
    return (
        f"Attacks that know of the shield leave at most {most_left(found):.1f} % (`{suite(found)}`, "
        f"N = {images(found, adaptive=True)})."
    )


def _distances(found: PartSummary) -> str:
    """By curve: how far the points are from the paper's on average, and the furthest."""
    words = []
    for column, _ in compared(found):
        each = []
        for series in all_series(found):
            ours, paper = (curve(found, series, column.key, who) for who in ("ours", "paper"))
            deltas = {x: ours[x] - paper[x] for x in ours if x in paper}
            worst = _highest({x: abs(delta) for x, delta in deltas.items()})
            each.append(f"{series} {mean_distance(deltas):.1f} ({signed(deltas[worst])} at {worst:g})")
        words.append(f"{NAMES[column.key]}: {', '.join(each)}")
    return f"Mean distance from the paper in points, and the furthest point, {'; '.join(words)}."


def noise(id: str) -> str:
    """F6b and A1: what the strongest noise changes."""
    found = part(id)
    last = _last(found)
    heads = [f"points from no noise to {last:g}/255"]
    heads += [f"{name}: {who}" for name in NAMES.values() for who in WHOSE.values()]
    lines = []
    for series in all_series(found):
        curves = [curve(found, series, key, who) for key in NAMES for who in WHOSE]
        lines.append([series, *(signed(points[last] - points[0]) for points in curves)])
    return "\n".join([*table(heads, lines), f"\n{_distances(found)} {_left(found)}"])


def once() -> str:
    """A1 against F6b: noise in the codebook alone, or in the assignment too."""
    one, two = part("A1"), part("F6b")
    strongest, series = _last(one), all_series(one)
    heads = ["once (A1) less twice (F6b)", "above at", "below at"]
    heads += [f"{name}, at {strongest:g}/255" for name in series]
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
            ends = [winners(gap, places, choose) for choose in (max, min)]
            lines.append([f"over {found.x_title}: {whom}", str(len(places)), *ends])
    return "\n".join(table(heads, lines))


def winners(
    gap: Mapping[str, Mapping[float, float]],
    places: Sequence[float],
    choose: Callable[[Iterable[float]], float],
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
    paper, exact = (
        [
            accuracy - certified
            for each in rows(found)
            if (accuracy := each.value("accuracy").ours) is not None
            and (certified := each.value(key).ours) is not None
        ]
        for key in ("certified", "clopper_pearson")
    )
    used = read_manifest(
        CertificationManifest, recorded.RESULTS / MEASURED / "F7" / "cifar10" / "randdisc-codes25"
    )
    slack = math.sqrt(2 * math.log(1 / used.delta) / used.draws)
    over = []
    for each in published.section("F7").values:
        natural = [other for other in published.section("T2").values if other.defense == each.defense]
        accuracy = next((other.value for other in natural if other.measure == "natural"), None)
        if (each.data, each.x) == ("cifar10", 0) and accuracy is not None:
            ceiling = (1 - slack) * accuracy
            verdict = "above" if each.value > ceiling else "below"
            title = row(found, str(each.defense)).series
            over.append(f"{title} {percent(each.value)} %, {verdict} {percent(ceiling)} %")
    return (
        f"Points between measured and certified accuracy on CIFAR-10, ours: Proposition 1 {_span(paper)}, "
        f"Clopper–Pearson {_span(exact)}. With m = {used.draws:,} and δ = {used.delta:g} the slack "
        f"is {slack:.3f}, so Proposition 1 certifies at most {1 - slack:.3f} times the accuracy of the same "
        f"draws. The paper's figures at ε = 0 on CIFAR-10, beside that multiple of its natural accuracy in "
        f"T2: {'; '.join(over)}."
    )


def _span(values: Sequence[float]) -> str:
    return f"{percent(min(values))} to {percent(max(values))}"


# F8: the KL diagnostic, its second term, and other kinds of mixtures


def divergences(data: str) -> str:
    """The estimate, its floor, the second term, and the order of the defenses."""
    found, budgets = part("F8", name=data), BUDGETS[data]
    heads = ["nats", "values of a codebook", "floor: ours"]
    heads += [f"{_budget(data, x)}: {who}" for x in budgets for who in WHOSE.values()]
    heads += [f"labels, {_budget(data, x)}: ours" for x in budgets[1:]]
    lines = []
    for series in all_series(found):
        first = next(each for each in rows(found) if each.series == series)
        estimates = [curve(found, series, "kl", who)[x] for x in budgets for who in WHOSE]
        labels = curve(found, series, "second", "ours")
        shown = [*estimates, *(labels[x] for x in budgets[1:])]
        lines.append(
            [
                first.title.split(", ε")[0],
                str(codebook_values(first.defense, CHANNELS[data])),
                f"{curve(found, series, 'floor', 'ours')[0]:.2f}",
                *(f"{each:,.1f}" for each in shown),
            ]
        )
    wide = max(each.value("kl").standard_error or 0 for each in rows(found))
    labelled = max(each.value("second").n or 0 for each in rows(found))
    return "\n".join(
        [
            *table(heads, lines),
            f"\nN = {images(found):,} images, labels: the first {labelled}; the standard error of the "
            f"estimate over images is at most {wide:,.0f} nats. {_orders(found, data)}",
        ]
    )


def _orders(found: PartSummary, data: str) -> str:
    """Which defense has the larger estimate: in the paper, in ours, and with the labels."""
    orders = []
    for x in BUDGETS[data][1:]:
        paper, ours = (
            {series: curve(found, series, "kl", who)[x] for series in all_series(found)} for who in WHOSE
        )
        labels = {series: curve(found, series, "second", "ours")[x] for series in all_series(found)}
        both = {series: ours[series] + labels[series] for series in ours}
        told = {"the paper": paper, "ours": ours, "with the labels": both}
        orders.append(f"at {_budget(data, x)} " + ", ".join(f"{n} {_order(v)}" for n, v in told.items()))
    return f"Order: {'; '.join(orders)}."


def _order(values: Mapping[str, float]) -> str:
    return " < ".join(sorted(values, key=values.__getitem__))


def deviations() -> str:
    """MNIST: how far apart two equal Gaussians would be, for the same divergence."""
    found, last = part("F8", name="mnist"), BUDGETS["mnist"][-1]
    shown = []
    for series in all_series(found):
        apart = [math.sqrt(2 * curve(found, series, "kl", who)[last]) for who in WHOSE]
        shown.append(f"{series} {apart[0]:.0f}, {apart[1]:.0f}")
    return (
        f"Two Gaussians that differ in their means alone are √(2·KL) standard deviations apart. At "
        f"{_budget('mnist', last)} that is, in the paper and in ours: {'; '.join(shown)}."
    )


def _budget(data: str, x: float) -> str:
    return f"ε = {x:g}/255" if x and data == "cifar10" else f"ε = {x:g}"


def codebook_values(defense: str, channels: int) -> int:
    """The numbers that a codebook holds."""
    _, settings = parse_spec(defense)
    return int(settings["codes"]) * channels * int(settings.get("size", 1)) ** 2


@dataclass(frozen=True, kw_only=True)
class Nats:
    """A divergence."""

    value: float


@dataclass(frozen=True, kw_only=True)
class CovarianceRow:
    """The diagnostic of one image with mixtures of one kind; text, defense: as named, and in full."""

    text: str
    defense: Mapping[str, Json]
    covariance: str
    eps: float
    kl: Nats
    floor: Nats
    held_out: float


@dataclass(frozen=True, kw_only=True)
class CovarianceMixture:
    """Of how many Gaussians."""

    components: int


@dataclass(frozen=True, kw_only=True)
class CovarianceSettings:
    """What the diagnostic was made with."""

    codebooks: int
    mixture: CovarianceMixture
    seed: int


@dataclass(frozen=True, kw_only=True)
class CovarianceRecord:
    """What research/kl_diagnostic.py wrote, with mixtures of every kind."""

    data: Images
    attack: str
    settings: CovarianceSettings
    environment: Machine
    rows: tuple[CovarianceRow, ...]


def covariances() -> str:
    """The same diagnostic with mixtures of every kind, and which of them describes codebooks best."""
    record = recorded.read(CovarianceRecord, COVARIANCES)
    budgets = sorted({each.eps for each in record.rows})[-2:]
    shields = {each.text: named(each.text, each.defense) for each in record.rows}
    kinds = list(dict.fromkeys(each.covariance for each in record.rows))
    heads = ["covariances"]
    heads += [f"{name}: {what}" for name in shields.values() for what in _columns(budgets)]
    lines = [
        [kind, *(text for shield in shields for text in _kind(record.rows, kind, shield, budgets))]
        for kind in kinds
    ]
    used = record.settings
    apart = [f"{name} {_apart(record.rows, text, budgets[-1]):.0f}" for text, name in shields.items()]
    return "\n".join(
        [
            *table(heads, lines),
            f"\nIn nats, means of the first {record.data.images} CIFAR-10 test images; "
            f"{record.attack}, {used.codebooks:,} codebooks a set, {used.mixture.components} "
            f"components, seed {used.seed}; {machine(record.environment)}. Held out: mean ln density "
            "of codebooks that the mixture of the image was not fitted to; the larger, the better. Between "
            f"kinds the figures at {round(budgets[-1] * 255)}/255 differ by factors of up to "
            f"{', '.join(apart)}.",
        ]
    )


def _columns(budgets: Sequence[float]) -> list[str]:
    return ["floor", *(f"{round(eps * 255)}/255" for eps in budgets), "held out"]


def _kind(found: Sequence[CovarianceRow], kind: str, shield: str, budgets: Sequence[float]) -> list[str]:
    these = [each for each in found if (each.covariance, each.text) == (kind, shield)]

    def mean(values: Iterable[float]) -> str:
        return f"{statistics.fmean(values):,.1f}"

    at = [mean(each.kl.value for each in these if each.eps == eps) for eps in budgets]
    return [mean(each.floor.value for each in these), *at, mean(each.held_out for each in these)]


def _apart(found: Sequence[CovarianceRow], shield: str, eps: float) -> float:
    """The largest mean of a kind as a multiple of the smallest."""
    means: dict[str, list[float]] = {}
    for each in found:
        if (each.text, each.eps) == (shield, eps):
            means.setdefault(each.covariance, []).append(each.kl.value)
    values = [statistics.fmean(each) for each in means.values()]
    return max(values) / min(values)


CURVE_TEXTS: dict[str, Callable[[], str]] = {
    "reproduction-F4": partial(bends, "F4"),
    "reproduction-F5": partial(bends, "F5"),
    "reproduction-F6b": partial(noise, "F6b"),
    "reproduction-A1": partial(noise, "A1"),
    "reproduction-A1-once": once,
    "reproduction-F9": gaps,
    "reproduction-F7-bounds": bounds,
    "reproduction-F8": partial(divergences, "cifar10"),
    "reproduction-F8-mnist": partial(divergences, "mnist"),
    "reproduction-F8-deviations": deviations,
    "reproduction-F8-covariances": covariances,
}
