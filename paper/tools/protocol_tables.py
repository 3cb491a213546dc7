"""What docs/reproduction.md says of the other choices of the protocol: one of them changed at a time."""

import statistics
from collections.abc import Callable, Iterable
from functools import partial

import recorded
from recorded import Record
from reproduction_values import part, row
from tables import machine, percent, signed, table
from vqshield.core.display_names import NONE, display_defense
from vqshield.evaluation.summary import EvaluationSummary

MEASURES = {"natural": "clean", "pgd": "PGD", "autoattack": "AutoAttack"}


def protocol(id: str) -> str:
    """What each choice moves on average, and how far from the paper the table then is."""
    found = recorded.load(f"protocol-sensitivity-{id}.json")
    base = found.variations[0]
    heads = ["done otherwise", *MEASURES.values(), *(f"distance, {title}" for title in MEASURES.values())]
    first = [base.what, *("" for _ in MEASURES), *_distances(base)]
    lines = [
        [f"{each.varied}: {each.what}", *_moves(each, base), *_distances(each)]
        for each in found.variations[1:]
    ]
    return table(
        heads,
        [first, *lines],
        f"Mean over the defenses of {id}, in points: what the choice moves, then the distance from the "
        f"paper with it. {found.classifier}, the first {found.images:,} images, {found.runs} runs; "
        f"{machine(found.environment)}.",
    )


def _moves(each: Record, base: Record) -> list[str]:
    """The mean change against the table as we run it, in points."""
    held = {(cell.defense, cell.measure): cell.accuracy for cell in base.cells}
    return [
        _mean((cell.accuracy - held[cell.defense, measure] for cell in _cells(each, measure)), signed)
        for measure in MEASURES
    ]


def _distances(each: Record) -> list[str]:
    """The mean distance from the paper, in points."""
    return [
        _mean((abs(cell.accuracy - cell.paper) for cell in _cells(each, measure)), "{:.1f}".format)
        for measure in MEASURES
    ]


def _cells(each: Record, measure: str) -> list[Record]:
    return [cell for cell in each.cells if cell.measure == measure]


def _mean(shares: Iterable[float], write: Callable[[float], str]) -> str:
    """In points; nothing where that measure was not taken."""
    known = list(shares)
    return write(100 * statistics.fmean(known)) if known else ""


def natural_choices() -> str:
    """Natural accuracy on CIFAR-100 with one setting of a defense changed, and less the paper's."""
    found = recorded.read(EvaluationSummary, "natural-choices-cifar100-wrn28_10/summary.json")
    table_3, lines = part("T3", name="cifar100"), []
    for each in found.rows:
        if each.attack != NONE or each.defense == NONE:
            continue
        plain = ",".join(each.defense.split(",")[:2])  # the table's text: size and codes
        said = row(table_3, plain).value("natural").paper
        assert said is not None, plain
        lines.append([display_defense(each.defense), percent(each.mean), signed(100 * (each.mean - said))])
    manifest, doubt = found.manifest, 100 * max(each.standard_error for each in found.rows)
    return table(
        ["T3, clean accuracy in %", "ours", "less the paper's"],
        lines,
        f"The first {manifest.data.images} images, a draw for each: the standard error is about "
        f"{doubt:.0f} points; {machine(manifest.machine)}.",
    )


PROTOCOL_TABLES: dict[str, Callable[[], str]] = {
    **{f"reproduction-{id}-protocol-choices": partial(protocol, id) for id in ("T1", "T2")},
    "reproduction-T3-natural-choices": natural_choices,
}
