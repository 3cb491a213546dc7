"""What docs/reproduction.md says of F8: the KL diagnostic, its second term, and other kinds of mixtures."""

import gzip
import json
import statistics
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from certificate_tables import machine, named, table
from reproduction_records import RESULTS, Part, all_series, cell, curve, images, part, rows

from vqshield.settings import parse_spec

WHOSE = {"paper": "the paper", "ours": "ours"}
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
            f"\nN = {images(found):,} images, labels {labelled}; the standard error of the estimate over "
            f"images is at most {wide:,.0f} nats. {_orders(found, data)}",
        ]
    )


def _orders(found: Part, data: str) -> str:
    """Which defense has the larger estimate: in the paper, in ours, and with the labels."""
    last = BUDGETS[data][-1]
    said = [
        f"{name} {_order(found, lambda s, w=who: curve(found, s, 'kl', w)[last])}"
        for who, name in WHOSE.items()
    ]
    above = _order(found, lambda series: curve(found, series, "excess", "ours")[last])
    both = _order(
        found,
        lambda series: sum(curve(found, series, key, "ours")[last] for key in ("kl", "second")),
    )
    return (
        f"Order at {_budget(data, last)}: {', '.join(said)}, above the floor {above}, with the labels {both}."
    )


def _order(found: Part, value: Callable[[str], float]) -> str:
    return " < ".join(sorted(all_series(found), key=value))


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
    return "\n".join(
        [
            *table(heads, lines),
            f"\nIn nats, means of the first {record['data']['images']} CIFAR-10 test images; "
            f"{record['attack']}, {used['codebooks']:,} codebooks a set, {used['mixture']['components']} "
            f"components, seed {used['seed']}; {machine(record['environment'])}. Held out: mean ln density "
            "of codebooks that the mixture of the image was not fitted to; the larger, the better.",
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


DIVERGENCE_TEXTS: dict[str, Callable[[], str]] = {
    "reproduction-F8": partial(divergences, "cifar10"),
    "reproduction-F8-mnist": partial(divergences, "mnist"),
    "reproduction-F8-covariances": covariances,
}
