"""The tables of docs/certificates.md about certified radii, and the sentence of README.md, from results/."""

import math
from collections.abc import Callable, Sequence

import recorded
from certificate_tables import BOUNDED, certification
from recorded import Record
from tables import machine, named, percent, table
from vqshield.certificates import allowed_failures, linf_radius

RADII = (0.1, 0.25, 0.5)  # at which certified accuracies are given
CURVES = "certified-radius-cifar10-resnet18.json"
VOTES = "attack-certified-votes.json"
WHERE = {"shared": "one draw on the image", "image": "two draws on the image", "patch": "two draws a patch"}


def radius_record() -> Record:
    """Certified votes of every configuration."""
    return recorded.load(CURVES)


def levels(rows: Sequence[Record]) -> dict[float, list[Record]]:
    """The rows of every level, the largest mean radius first."""
    found: dict[float, list[Record]] = {}
    for row in sorted(rows, key=lambda row: (row.level, -row.mean_radius)):
        found.setdefault(row.level, []).append(row)
    return found


def is_tuned(row: Record) -> bool:
    """Whether the classifier was fine-tuned."""
    return row.tuned_behind is not None


def is_gaussian(row: Record) -> bool:
    """Whether it is noise alone, without a quantizer."""
    return row.noise == "gaussian"


def certified_at(row: Record, radius: float) -> float:
    """The certified accuracy at one of the radii of the curve."""
    return next(point.certified for point in row.curve if point.radius == radius)


def _what(row: Record) -> str:
    return "none" if is_gaussian(row) else named(row.defense, row.settings)


def _where(row: Record) -> str:
    return WHERE.get(row.noise, "plain Gaussian")


def radii() -> str:
    """Certified votes of every configuration, by level."""
    record = radius_record()
    plan, images = record.plan, record.data.images
    heads = ["level", "noise", "quantizer", "classifier", "votes right", "certified right", "mean radius",
             *(f"at {radius:g}" for radius in RADII)]  # fmt: skip
    rows = [
        [
            f"{row.level:.3g}",
            _where(row),
            _what(row),
            "fine-tuned" if is_tuned(row) else "as given",
            percent(row.votes_right),
            percent(row.certified_right),
            f"{row.mean_radius:.3f}",
            *(percent(certified_at(row, radius)) for radius in RADII),
        ]
        for group in levels(record.rows).values()
        for row in group
    ]
    return table(
        heads,
        rows,
        f"First {images} CIFAR-10 test images, {recorded.stem(record.rows[0].classifier.name)}, "
        f"n₀ = {plan.n0}, n = {plan.n:,}, alpha = {plan.alpha}, precision {plan.precision}, "
        f"seed {plan.seed}; {machine(record.environment)}. Shares in %; their standard error is at "
        f"most {math.ceil(1000 * math.sqrt(0.25 / images)) / 10} points. An image whose vote is wrong "
        "or not certified has radius 0 in the mean.",
    )


def reach() -> str:
    """By level: what that many draws can certify at most, and what certifies most."""
    record, values = radius_record(), certification(BOUNDED[0]).manifest.values
    heads = ["level", "largest radius", "the same in L∞", "most with the classifier as given",
             "most with a fine-tuned one"]  # fmt: skip

    def shown(row: Record) -> str:
        what = "noise alone" if is_gaussian(row) else f"{_what(row)}, {_where(row)}"
        return f"{what}: {row.mean_radius:.3f}"

    rows = []
    for level, group in levels(record.rows).items():
        largest = max(row.largest_radius for row in group)
        inside = 255 * linf_radius(radius=largest, values=values)
        best = [
            next((shown(row) for row in group if is_tuned(row) == tuned), "not measured")
            for tuned in (False, True)
        ]
        rows.append([f"{level:.3g}", f"{largest:.3f}", f"{inside:.2f}/255", *best])
    return table(
        heads,
        rows,
        f"Largest radius: where all {record.plan.n:,} draws agree. Most: by the mean radius, which is given.",
    )


def attacked() -> str:
    """What attacks inside the certified radius did."""
    if not (recorded.RESULTS / VOTES).is_file():
        return "Not measured yet."
    record = recorded.load(VOTES)
    plan = record.plan
    outcome = f"**{record.flipped or 'None'} flipped.**"
    if record.lowest_share is not None:
        outcome += f" At worst {percent(record.lowest_share)} % of the draws still gave the certified answer."
    return (
        f"{record.certified} of {record.images} votes were certified (`{plan.defense}`, "
        f"n = {plan.n:,}, alpha = {plan.alpha}), {record.certified_right} of them right, with a "
        f"mean radius of {record.mean_radius:.3f}. Each was attacked within {plan.inside:g} of its own "
        f"radius by {len(plan.attacks)} attacks, and {plan.votes:,} fresh draws voted on what each of "
        f"them found. {outcome} {recorded.stem(record.classifier.name)}, seed {plan.seed}; "
        f"{machine(record.environment)}."
    )


def short() -> str:
    """README: quantizer and noise alone at one level, before and after fine-tuning."""
    record = radius_record()
    radius = RADII[0]
    group = next(group for group in levels(record.rows).values() if any(map(is_tuned, group)))

    images, alpha = record.data.images, record.plan.alpha
    failing = allowed_failures(images=images, delta=alpha, eta=alpha)  # may be wrong, so they do not count

    def best(*, gaussian: bool, tuned: bool) -> str:
        row = next(each for each in group if (is_gaussian(each), is_tuned(each)) == (gaussian, tuned))
        return f"{percent(max(0.0, certified_at(row, radius) - failing / images))} %"

    noise = f"{group[0].level:g}"
    return (
        f"- Certified radii are small. At noise {noise} and L2 radius {radius:g}, with a ResNet18 as given, "
        f"the best quantizer certifies {best(gaussian=False, tuned=False)} of {images} CIFAR-10 images and "
        f"noise alone {best(gaussian=True, tuned=False)}; with one fine-tuned for each, "
        f"{best(gaussian=False, tuned=True)} and {best(gaussian=True, tuned=True)} (less {failing} images "
        f"whose certificates may fail, for a statement about all of them at {1 - alpha:g}). "
        "See [docs/certificates.md](docs/certificates.md#5-what-was-measured)."
    )


RADIUS_TABLES: dict[str, Callable[[], str]] = {
    "certified-radii": radii,
    "certified-reach": reach,
    "certified-attacked": attacked,
    "certified-short": short,
}
