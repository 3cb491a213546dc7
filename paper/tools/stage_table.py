"""Where a GPU's time goes, for docs/speed.md: benchmarks/results/stages-cuda.json."""

from collections.abc import Callable

import recorded
from tables import machine, table

WHOLE = "whole call"


def stages() -> str:
    """One line a stage, one column a size of images."""
    record = recorded.load(recorded.BENCHMARKS / "stages-cuda.json")
    sizes = list(dict.fromkeys((row.images, row.side, row.codes) for row in record.rows))
    times = {(row.stage, row.images, row.side, row.codes): row.microseconds for row in record.rows}
    heads = ["µs an image", *(f"{count:,} of {side}×{side}, k={codes}" for count, side, codes in sizes)]
    lines = [
        [stage, *(f"{times[stage, *size]:.3g}" if (stage, *size) in times else "" for size in sizes)]
        for stage in sorted(dict.fromkeys(row.stage for row in record.rows), key=lambda stage: stage == WHOLE)
    ]
    return table(
        heads,
        lines,
        f"{machine(record.machine)}.",
    )


STAGE_TABLES: dict[str, Callable[[], str]] = {"speed-stages": stages}
