"""The tables of docs/certificates.md about error bounds and about the KL diagnostic, from paper/results/."""

import math
from collections.abc import Callable, Mapping, Sequence

import recorded
from attack_tables import MEASURED, SUITE
from attack_tables import read as read_attacks
from recorded import Record
from tables import machine, named, percent, table
from vqshield.certification.summary import CertificationSummary
from vqshield.core.display_names import BOUND_NAMES

BOUNDED = ("randdisc", "prd", "swrd")  # folders of paper/results/certify-cifar10-resnet18/
EXACT = BOUND_NAMES["clopper_pearson"]


def certification(name: str) -> CertificationSummary:
    """What `vqshield certify` found of a defense."""
    return recorded.read(CertificationSummary, f"certify-cifar10-resnet18/{name}/summary.json")


def bounds() -> str:
    """Every error bound on the same draws, by defense and strength of the attack."""
    summaries = [certification(name) for name in BOUNDED]
    rows: list[list[str]] = []
    lost: dict[str, list[float]] = {name: [] for name in BOUND_NAMES}
    for summary in summaries:
        defense = summary.manifest.defense
        for row in summary.draws:
            exact = row.bounds["clopper_pearson"]
            shares = [row.bounds[name].certified_accuracy for name in BOUND_NAMES]
            eps = f"{round(row.eps * 255)}/255" if row.eps else "0"
            rows.append(
                [
                    named(defense.name, defense.settings or {}),
                    eps,
                    *map(percent, (row.accuracy, *shares, exact.union, exact.binomial)),
                ]
            )
            for name, share in zip(BOUND_NAMES, shares, strict=True):
                lost[name].append(row.accuracy - share)
    heads = [
        "accuracy in %",
        "ε",
        "measured",
        *BOUND_NAMES.values(),
        "all images: union",
        "all images: binomial",
    ]
    used = summaries[0].manifest
    return table(
        heads,
        rows,
        f"First {used.data.images:,} CIFAR-10 test images, {recorded.stem(used.classifier.name)}, m = "
        f"{used.draws:,} draws, δ = {used.delta}, attack `{used.sources[-1].attack.name}` (L∞), "
        f"precision {used.precision}, seed {used.seed}; {machine(used.machine)}. The last two columns "
        f"are from {EXACT} bounds.",
        f"{_given_away(lost)} {_ignorant(summaries)}",
    )


def _given_away(lost: Mapping[str, Sequence[float]]) -> str:
    ranges = "; ".join(
        f"{BOUND_NAMES[name]} {percent(min(found))} to {percent(max(found))}" for name, found in lost.items()
    )
    pairs = zip(lost["proposition1"], lost["clopper_pearson"], strict=True)
    kept = math.floor(100 * min(1 - exact / paper for paper, exact in pairs))
    return (
        f"Points between the measured and the certified accuracy: {ranges}. Of what Proposition 1 gives "
        f"away, {EXACT} keeps at least {kept} %."
    )


def _ignorant(summaries: Sequence[CertificationSummary]) -> str:
    names = {summary.manifest.defense.name for summary in summaries}
    attacks = read_attacks(MEASURED)
    left = [row.mean for row in attacks.rows if row.defense in names and row.attack == SUITE]
    return (
        f"The attack ignores the defense: at {round(attacks.manifest.eps * 255)}/255 `{SUITE}`, which knows "
        f"it, leaves at most {100 * max(left):.2f} % accuracy ([attacks.md](attacks.md))."
    )


def divergence_records() -> list[Record]:
    """Both files."""
    return [recorded.load(f"kl-cifar10-{name}.json") for name in ("randdisc-prd", "swrd")]


def divergences() -> str:
    """The KL diagnostic with its floor."""
    records = divergence_records()
    heads = ["defense", "values of a codebook", "first term, fitted", "its floor", "excess", "labels",
             "proved, first term", "s"]  # fmt: skip
    rows = [
        [
            named(row.text, row.defense),
            str(row.dimensions),
            *map(_estimate, (row.kl, row.floor, row.excess)),
            _estimate(row.second) + ("" if _labels_count(row) else " †"),
            f"{row.proved.first:,.0f}",
            f"{sum(row.seconds.values()):.1f}",
        ]
        for record in records
        for row in record.rows
    ]
    first, used = records[0], records[0].settings
    shown = first.rows[0]
    notes = {row.second_is for record in records for row in record.rows if not _labels_count(row)}
    return table(
        heads,
        rows,
        f"In nats, ± the standard error of the sampling. CIFAR-10 test image {shown.image}, "
        f"{recorded.stem(first.classifier.name)}, {first.attack}, ε = {round(shown.eps * 255)}/255 (L∞); "
        f"{used.codebooks:,} codebooks a set, {used.mixture.components} components, covariance "
        f"{', '.join(used.mixture.covariance)}, starts {used.starts}, seed {used.seed}; "
        f"{machine(first.environment)}.",
        *(f"† {note}." for note in sorted(notes)),
    )


def _estimate(estimate: Record) -> str:
    return f"{estimate.value:.2f} ± {estimate.standard_error:.2f}"


def _labels_count(row: Record) -> bool:
    """Whether the labels' divergence is the second term, or at least below a bound that is proved."""
    return row.proved.second is not None


CERTIFICATE_TABLES: dict[str, Callable[[], str]] = {
    "certify-bounds": bounds,
    "kl-diagnostic": divergences,
}
