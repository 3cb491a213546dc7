"""What docs/reproduction.md says of the paper's plots: where curves are highest, how they bend, the KL."""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import recorded
from reproduction_values import (
    MEASURED,
    Whose,
    all_series,
    curve,
    images,
    part,
    row,
    rows,
)
from tables import percent, table
from vqshield.certification.records import CertificationManifest
from vqshield.core.settings import parse_spec
from vqshield.runs.manifests import read_manifest
from vqshield_paper.reproduction import published
from vqshield_paper.reproduction.model import PartSummary

WHOSE: dict[Whose, str] = {"paper": "the paper", "ours": "ours"}
BUDGETS = {"mnist": (0, 0.16, 0.32), "cifar10": (0, 8, 16)}
CHANNELS = {"mnist": 1, "cifar10": 3}


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
        f"draws. The paper's values at ε = 0 on CIFAR-10, compared with that multiple of its clean "
        f"accuracy in T2: {'; '.join(over)}."
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
    return table(
        heads,
        lines,
        f"N = {images(found):,} images, labels: the first {labelled}; the standard error of the "
        f"estimate over images is at most {wide:,.0f} nats. {_orders(found, data)}",
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


def _budget(data: str, x: float) -> str:
    return f"ε = {x:g}/255" if x and data == "cifar10" else f"ε = {x:g}"


def codebook_values(defense: str, channels: int) -> int:
    """The numbers that a codebook holds."""
    _, settings = parse_spec(defense)
    return int(settings["codes"]) * channels * int(settings.get("size", 1)) ** 2


CURVE_TEXTS: dict[str, Callable[[], str]] = {
    "reproduction-F7-bounds": bounds,
    "reproduction-F8": partial(divergences, "cifar10"),
}
