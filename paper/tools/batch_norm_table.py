"""docs/reproduction.md: T1 with the checkpoint's batch-norm statistics and with those of each batch."""

from collections.abc import Callable

import recorded
from recorded import stem
from reproduction_values import part, rows
from tables import machine, percent, table

FILE = "batch-norm-T1.json"
MEASURES = {"natural": "clean", "pgd": "PGD", "autoattack": "AutoAttack"}


def batch_norm() -> str:
    """T1: the paper's value, ours with running statistics, and ours with batch statistics."""
    found, usual = recorded.load(FILE), part("T1")
    in_batches = {(row.defense, row.measure): row.ours for row in found.rows}
    lines: list[list[str]] = []
    distances: list[tuple[float, float]] = []
    for row in rows(usual):
        if (row.defense, "natural") not in in_batches or row.defense == "none":
            continue
        cells = [row.title]
        for measure in MEASURES:
            value, batch = row.values[measure], in_batches[row.defense, measure]
            assert value.paper is not None
            assert value.ours is not None
            cells.append(" / ".join(map(percent, (value.paper, value.ours, batch))))
            distances.append((abs(value.ours - value.paper), abs(batch - value.paper)))
        lines.append(cells)
    running, batches = (percent(sum(column) / len(distances)) for column in zip(*distances, strict=True))
    first = found.rows[0]
    assert usual.classifier is not None
    return table(
        ["paper / running / batch, in %", *MEASURES.values()],
        lines,
        f"Mean distance from the paper over {len(distances)} values: {running} points with running "
        f"statistics ({stem(usual.classifier.name)}), {batches} with `--batch-norm {first.mode}` "
        f"({stem(first.classifier)}). "
        f"{first.n:,} test images, {first.runs} runs; {machine(found.environment)}.",
    )


BATCH_NORM_TABLES: dict[str, Callable[[], str]] = {"batch-norm-T1": batch_norm}
