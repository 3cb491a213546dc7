"""Where a GPU's time goes, for docs/speed.md: benchmarks/results/stages-cuda.json."""

from collections.abc import Callable
from dataclasses import dataclass

from recorded import Machine, read
from speed_tables import RESULTS
from tables import machine, table

WHOLE = "whole call"


@dataclass(frozen=True, kw_only=True)
class StageTime:
    """Microseconds of an image in one stage, or in a whole call."""

    images: int
    side: int
    codes: int
    stage: str
    microseconds: float


@dataclass(frozen=True, kw_only=True)
class StagesRecord:
    """What benchmarks/stages.py wrote."""

    machine: Machine
    rows: tuple[StageTime, ...]


def stages() -> str:
    """One line a stage, one column a size of images."""
    record = read(StagesRecord, RESULTS / "stages-cuda.json")
    sizes = list(dict.fromkeys((row.images, row.side, row.codes) for row in record.rows))
    times = {(row.stage, row.images, row.side, row.codes): row.microseconds for row in record.rows}
    heads = ["µs an image", *(f"{count:,} of {side}×{side}, k={codes}" for count, side, codes in sizes)]
    lines = [
        [stage, *(f"{times[stage, *size]:.3g}" if (stage, *size) in times else "" for size in sizes)]
        for stage in sorted(dict.fromkeys(row.stage for row in record.rows), key=lambda stage: stage == WHOLE)
    ]
    return "\n".join([*table(heads, lines), "", f"{machine(record.machine)}."])


STAGE_TABLES: dict[str, Callable[[], str]] = {"speed-stages": stages}
