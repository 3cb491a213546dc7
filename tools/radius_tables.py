"""The tables of docs/certificates.md about certified radii, and the sentence of README.md, from results/."""

import math
from collections.abc import Callable
from typing import Any

from certificate_plot import WHERE
from certificate_tables import BOUNDED, classifier, machine, named, percent, read, table

from vqshield.certificates import linf_radius

RADII = (0.1, 0.25, 0.5)  # at which certified accuracies are given
CURVES = "certified-radius-cifar10-resnet18.json"

Row = dict[str, Any]


def at(row: Row, radius: float) -> float:
    """The certified accuracy at a radius."""
    return float(next(point["certified"] for point in row["curve"] if point["radius"] == radius))


def _what(row: Row) -> str:
    return "none" if row["noise"] == "gaussian" else named(row["defense"], row["settings"])


def _where(row: Row) -> str:
    return WHERE.get(row["noise"], "plain Gaussian")


def levels(rows: list[Row]) -> dict[float, list[Row]]:
    """The rows of every level, the largest mean radius first."""
    ordered = sorted(rows, key=lambda row: (row["level"], -row["mean_radius"]))
    found: dict[float, list[Row]] = {}
    for row in ordered:
        found.setdefault(row["level"], []).append(row)
    return found


def radii() -> str:
    """Certified votes of every configuration, by level."""
    record = read(CURVES)
    plan, images = record["plan"], record["data"]["images"]
    heads = ["level", "noise", "quantizer", "classifier", "votes right", "certified right", "mean radius",
             *(f"at {radius:g}" for radius in RADII)]  # fmt: skip
    rows = [
        [
            f"{row['level']:.3g}",
            _where(row),
            _what(row),
            "as given" if row["tuned_behind"] is None else "fine-tuned",
            percent(row["votes_right"]),
            percent(row["certified_right"]),
            f"{row['mean_radius']:.3f}",
            *(percent(at(row, radius)) for radius in RADII),
        ]
        for group in levels(record["rows"]).values()
        for row in group
    ]
    return "\n".join(
        [
            *table(heads, rows),
            f"\nFirst {images} CIFAR-10 test images, {classifier(record['rows'][0])}, n₀ = {plan['n0']}, "
            f"n = {plan['n']:,}, alpha = {plan['alpha']}, precision {plan['precision']}, "
            f"seed {plan['seed']}; {machine(record['environment'])}. Shares in %; their standard error is at "
            f"most {percent(math.sqrt(0.25 / images))} points. An image whose vote is wrong or not certified "
            "has radius 0 in the mean.",
        ]
    )


def reach() -> str:
    """By level: what so many draws can certify at most, and what certifies most."""
    record = read(CURVES)
    values = read(f"certify-cifar10-resnet18/{BOUNDED[0]}/summary.json")["specification"]["values"]
    heads = ["level", "largest radius", "the same in L∞", "most with the classifier as given",
             "most with a fine-tuned one"]  # fmt: skip

    def shown(row: Row) -> str:
        what = "noise alone" if row["noise"] == "gaussian" else f"{_what(row)}, {_where(row)}"
        return f"{what}: {row['mean_radius']:.3f}"

    rows = []
    for level, group in levels(record["rows"]).items():
        largest = max(row["largest_radius"] for row in group)
        inside = 255 * linf_radius(radius=largest, values=values)
        best = [
            next((shown(row) for row in group if (row["tuned_behind"] is not None) == tuned), "not measured")
            for tuned in (False, True)
        ]
        rows.append([f"{level:.3g}", f"{largest:.3f}", f"{inside:.2f}/255", *best])
    drawn = f"{record['plan']['n']:,}"
    return "\n".join(
        [
            *table(heads, rows),
            f"\nLargest radius: where all {drawn} draws agree. Most: by the mean radius, which is given.",
        ]
    )


def attacked() -> str:
    """What attacks inside the certified radius did."""
    try:
        record = read("attack-certified-votes.json")
    except FileNotFoundError:
        return "Not measured yet."
    plan, flipped = record["plan"], record["flipped"]
    share = record["lowest_share"]  # None where nothing was certified
    outcome = f"**{flipped or 'None'} flipped.**"
    if share is not None:
        outcome += f" At worst {percent(share)} % of the draws still gave the certified answer."
    return (
        f"{record['certified']} of {record['images']} votes were certified (`{plan['defense']}`, "
        f"n = {plan['n']:,}, alpha = {plan['alpha']}), {record['certified_right']} of them right, with a "
        f"mean radius of {record['mean_radius']:.3f}. Each was attacked within {plan['inside']:g} of its own "
        f"radius by {len(plan['attacks'])} attacks, and {plan['votes']:,} fresh draws voted on what each of "
        f"them found. {outcome} {classifier(record)}, seed {plan['seed']}; {machine(record['environment'])}."
    )


def short() -> str:
    """README: quantizer and noise alone at one level, before and after fine-tuning."""
    record = read(CURVES)
    radius = RADII[0]
    group = next(
        group for group in levels(record["rows"]).values() if any(row["tuned_behind"] for row in group)
    )

    def best(*, gaussian: bool, tuned: bool) -> str:
        wanted = (gaussian, tuned)
        row = next(r for r in group if (r["noise"] == "gaussian", r["tuned_behind"] is not None) == wanted)
        return f"{percent(at(row, radius))} %"

    images, noise = record["data"]["images"], f"{group[0]['level']:g}"
    return (
        f"- Certified radii are small. At noise {noise} and L2 radius {radius:g}, with a ResNet18 as given, "
        f"the best quantizer certifies {best(gaussian=False, tuned=False)} of {images} CIFAR-10 images and "
        f"noise alone {best(gaussian=True, tuned=False)}; with one fine-tuned for each, "
        f"{best(gaussian=False, tuned=True)} and {best(gaussian=True, tuned=True)}. "
        "See [docs/certificates.md](docs/certificates.md#5-what-was-measured)."
    )


RADIUS_TABLES: dict[str, Callable[[], str]] = {
    "certified-radii": radii,
    "certified-reach": reach,
    "certified-attacked": attacked,
    "certified-short": short,
}
