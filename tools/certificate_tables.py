"""The tables of docs/certificates.md about error bounds and about the KL diagnostic, from results/."""

import json
import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from attack_tables import MEASURED, NAMES, SUITE
from attack_tables import read as read_attacks

from vqshield.settings import parse_spec

RESULTS = Path(__file__).resolve().parents[1] / "results"
BOUNDED = ("randdisc", "prd", "swrd")  # folders of results/certify-cifar10-resnet18/
BOUNDS = {
    "proposition1": "Proposition 1",
    "truncated_markov": "truncated Markov",
    "empirical_bernstein": "empirical Bernstein",
    "clopper_pearson": "Clopper\u2013Pearson",
}
EXACT = BOUNDS["clopper_pearson"]


def read(name: str) -> dict[str, Any]:
    """One file of results/."""
    content: dict[str, Any] = json.loads((RESULTS / name).read_text())
    return content


def percent(share: float) -> str:
    """0.123 as 12.3."""
    return f"{100 * share:.1f}"


def table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> list[str]:
    """The lines of a table."""
    heads = list(heads)
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    return lines + [f"| {' | '.join(row)} |" for row in rows]


def named(text: str, settings: dict[str, Any]) -> str:
    """swRD (s=3, k=25); the size and the number of centres may be those that the text leaves open."""
    symbols = (("s", "size"), ("k", "codes"))
    shown = ", ".join(f"{symbol}={settings[key]}" for symbol, key in symbols if key in settings)
    return f"{NAMES[parse_spec(text)[0]]} ({shown})"


def machine(found: dict[str, Any]) -> str:
    """What it ran on."""
    return f"{found['device']}, torch {found['torch']}"


def classifier(record: dict[str, Any]) -> str:
    """The classifier's name, as files say it."""
    return str(record["classifier"]["name"]).removesuffix(".safetensors")


def bounds() -> str:
    """Every error bound on the same draws, by defense and strength of the attack."""
    summaries = [read(f"certify-cifar10-resnet18/{name}/summary.json") for name in BOUNDED]
    rows: list[list[str]] = []
    lost: dict[str, list[float]] = {name: [] for name in BOUNDS}
    for summary in summaries:
        defense = summary["specification"]["defense"]
        for row in summary["draws"]:
            found, exact = row["bounds"], row["bounds"]["clopper_pearson"]
            cells = [percent(found[name]["certified_accuracy"]) for name in BOUNDS]
            together = [percent(exact["union"]), percent(exact["binomial"])]
            shown = named(defense["name"], defense["settings"])
            eps = f"{round(row['eps'] * 255)}/255" if row["eps"] else "0"
            rows.append([shown, eps, percent(row["accuracy"]), *cells, *together])
            for name in BOUNDS:
                lost[name].append(row["accuracy"] - found[name]["certified_accuracy"])
    heads = ["accuracy in %", "ε", "measured", *BOUNDS.values(), "all images: union", "all images: binomial"]
    spec = summaries[0]["specification"]
    attack = spec["sources"][-1]["attack"]["name"]
    return "\n".join(
        [
            *table(heads, rows),
            f"\nFirst {spec['data']['images']:,} CIFAR-10 test images, {classifier(spec)}, m = "
            f"{spec['draws']:,} draws, δ = {spec['delta']}, attack `{attack}` (L∞), precision "
            f"{spec['precision']}, seed {spec['seed']}; {machine(spec['machine'])}. The last two columns are "
            f"from {EXACT} bounds.",
            f"\n{_given_away(lost)} {_ignorant(summaries)}",
        ]
    )


def _given_away(lost: dict[str, list[float]]) -> str:
    ranges = "; ".join(
        f"{BOUNDS[name]} {percent(min(found))} to {percent(max(found))}" for name, found in lost.items()
    )
    pairs = zip(lost["proposition1"], lost["clopper_pearson"], strict=True)
    kept = math.floor(100 * min(1 - exact / paper for paper, exact in pairs))
    return (
        f"Points between the measured and the certified accuracy: {ranges}. Of what Proposition 1 gives "
        f"away, {EXACT} keeps at least {kept} %."
    )


def _ignorant(summaries: list[dict[str, Any]]) -> str:
    names = {summary["specification"]["defense"]["name"] for summary in summaries}
    attacks = read_attacks(MEASURED)
    left = [row["mean"] for row in attacks["rows"] if row["defense"] in names and row["attack"] == SUITE]
    eps = round(attacks["specification"]["eps"] * 255)
    return (
        f"The attack ignores the defense: at {eps}/255 `{SUITE}`, which knows it, leaves at most "
        f"{100 * max(left):.2f} % accuracy ([attacks.md](attacks.md))."
    )


def divergences() -> str:
    """The KL diagnostic beside its floor."""
    records = [read(f"kl-cifar10-{name}.json") for name in ("randdisc-prd", "swrd")]
    heads = ["defense", "values of a codebook", "first term, fitted", "its floor", "excess", "labels",
             "proved, first term", "s"]  # fmt: skip
    rows = [
        [
            named(row["text"], row["defense"]),
            str(row["dimensions"]),
            *(_measured(row[name]) for name in ("kl", "floor", "excess")),
            _measured(row["second"]) + ("" if _whole(row) else " †"),
            f"{row['proved']['first']:,.0f}",
            f"{sum(row['seconds'].values()):.1f}",
        ]
        for record in records
        for row in record["rows"]
    ]
    first, used = records[0], records[0]["settings"]
    image, eps = first["rows"][0]["image"], round(first["rows"][0]["eps"] * 255)
    notes = {row["second_is"] for record in records for row in record["rows"] if not _whole(row)}
    mixture = used["mixture"]
    return "\n".join(
        [
            *table(heads, rows),
            f"\nIn nats, ± the standard error of the sampling. CIFAR-10 test image {image}, "
            f"{classifier(first)}, {first['attack']}, ε = {eps}/255 (L∞); "
            f"{used['codebooks']:,} codebooks a set, {mixture['components']} components, covariance "
            f"{', '.join(mixture['covariance'])}, starts {used['starts']}, seed {used['seed']}; "
            f"{machine(first['environment'])}.",
            *(f"\n† {note}." for note in sorted(notes)),
        ]
    )


def _whole(row: dict[str, Any]) -> bool:
    """Whether the labels' divergence is the second term, or at least below a bound that is proved."""
    return row["proved"]["second"] is not None


def _measured(found: dict[str, float]) -> str:
    return f"{found['value']:.2f} ± {found['standard_error']:.2f}"


CERTIFICATE_TABLES: dict[str, Callable[[], str]] = {
    "certify-bounds": bounds,
    "kl-diagnostic": divergences,
}
