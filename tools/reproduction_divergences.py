"""What docs/reproduction.md says of F8: the KL diagnostic, its second term, and other kinds of mixtures."""

import gzip
import json
import math
import statistics
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from certificate_tables import machine, named, table
from reproduction_curves import WHOSE
from reproduction_records import RESULTS, Part, all_series, cell, curve, images, part, rows

from vqshield.settings import parse_spec

BUDGETS = {"mnist": (0, 0.16, 0.32), "cifar10": (0, 8, 16)}
CHANNELS = {"mnist": 1, "cifar10": 3}
COVARIANCES = "kl-covariances-cifar10.json.gz"


def divergences(data: str) -> str:
    """The estimate, its floor, the second term, and the order of the defenses."""
    found, budgets = part("F8", name=data), BUDGETS[data]
    heads = ["nats", "values of a codebook", "floor: ours"]
    heads += [f"{_budget(data, x)}: {who}" for x in budgets for who in WHOSE.values()]
    heads += [f"labels, {_budget(data, x)}: ours" for x in budgets[1:]]
    lines = []
    for series in all_series(found):
        first = next(each for each in rows(found) if each["series"] == series)
        estimates = [curve(found, series, "kl", who)[x] for x in budgets for who in WHOSE]
        labels = curve(found, series, "second", "ours")
        shown = [*estimates, *(labels[x] for x in budgets[1:])]
        lines.append(
            [
                first["title"].split(", ε")[0],
                str(_values(first["defense"], CHANNELS[data])),
                f"{curve(found, series, 'floor', 'ours')[0]:.2f}",
                *(f"{each:,.1f}" for each in shown),
            ]
        )
    wide = max(cell(each, "kl").get("standard_error", 0) for each in rows(found))
    labelled = max(cell(each, "second").get("n", 0) for each in rows(found))
    return "\n".join(
        [
            *table(heads, lines),
            f"\nN = {images(found):,} images, labels: the first {labelled}; the standard error of the "
            f"estimate over images is at most {wide:,.0f} nats. {_orders(found, data)}",
        ]
    )


def _orders(found: Part, data: str) -> str:
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


def _order(values: dict[str, float]) -> str:
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


def _values(defense: str, channels: int) -> int:
    """The numbers that a codebook holds."""
    _, settings = parse_spec(defense)
    return int(settings["codes"]) * channels * int(settings.get("size", 1)) ** 2


def covariances() -> str:
    """The same diagnostic with mixtures of every kind, and which of them describes codebooks best."""
    record = json.loads(gzip.decompress((RESULTS / COVARIANCES).read_bytes()))
    budgets = sorted({each["eps"] for each in record["rows"]})[-2:]
    shields = {each["text"]: named(each["text"], each["defense"]) for each in record["rows"]}
    kinds = list(dict.fromkeys(each["covariance"] for each in record["rows"]))
    heads = ["covariances"]
    heads += [f"{name}: {what}" for name in shields.values() for what in _columns(budgets)]
    lines = [
        [kind, *(text for shield in shields for text in _kind(record["rows"], kind, shield, budgets))]
        for kind in kinds
    ]
    used = record["settings"]
    apart = [f"{name} {_apart(record['rows'], text, budgets[-1]):.0f}" for text, name in shields.items()]
    return "\n".join(
        [
            *table(heads, lines),
            f"\nIn nats, means of the first {record['data']['images']} CIFAR-10 test images; "
            f"{record['attack']}, {used['codebooks']:,} codebooks a set, {used['mixture']['components']} "
            f"components, seed {used['seed']}; {machine(record['environment'])}. Held out: mean ln density "
            "of codebooks that the mixture of the image was not fitted to; the larger, the better. Between "
            f"kinds the figures at {round(budgets[-1] * 255)}/255 differ by factors of up to "
            f"{', '.join(apart)}.",
        ]
    )


def _columns(budgets: Sequence[float]) -> list[str]:
    return ["floor", *(f"{round(eps * 255)}/255" for eps in budgets), "held out"]


def _kind(found: Sequence[dict[str, Any]], kind: str, shield: str, budgets: Sequence[float]) -> list[str]:
    these = [each for each in found if (each["covariance"], each["text"]) == (kind, shield)]

    def mean(values: list[float]) -> str:
        return f"{statistics.fmean(values):,.1f}"

    at = [mean([each["kl"]["value"] for each in these if each["eps"] == eps]) for eps in budgets]
    return [
        mean([each["floor"]["value"] for each in these]), *at, mean([each["held_out"] for each in these])
    ]  # fmt: skip


def _apart(found: Sequence[dict[str, Any]], shield: str, eps: float) -> float:
    """The largest mean of a kind as a multiple of the smallest."""
    means: dict[str, list[float]] = {}
    for each in found:
        if (each["text"], each["eps"]) == (shield, eps):
            means.setdefault(each["covariance"], []).append(each["kl"]["value"])
    values = [statistics.fmean(each) for each in means.values()]
    return max(values) / min(values)


DIVERGENCE_TEXTS: dict[str, Callable[[], str]] = {
    "reproduction-F8": partial(divergences, "cifar10"),
    "reproduction-F8-mnist": partial(divergences, "mnist"),
    "reproduction-F8-deviations": deviations,
    "reproduction-F8-covariances": covariances,
}
