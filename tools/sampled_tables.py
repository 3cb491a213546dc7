"""What a codebook from some of the patches saves and costs, for docs/speed.md, from sampled-DEVICE.json."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from recorded import Machine
from speed_tables import DEVICES, RESULTS
from tables import machine, percent, table

from vqshield.plain import from_plain

ALL = "all"


@dataclass(frozen=True, kw_only=True)
class SampledRow:
    """A row of benchmarks/sampled.py."""

    sample: int | None
    images_per_second: float
    inertia_ratio: float
    accuracy: float | None
    standard_error: float | None


@dataclass(frozen=True, kw_only=True)
class SampledRecord:
    """What benchmarks/sampled.py wrote."""

    machine: Machine
    side: int
    batch: int
    classifier: str | None
    images: int
    runs: int
    rows: tuple[SampledRow, ...]


def sampled(device: str) -> str:
    """One line a size of the sample."""
    path = RESULTS / f"sampled-{device}.json"
    if not path.is_file():
        return f"Not measured yet: `python benchmarks/sampled.py --device {device}` writes what belongs here."
    record = from_plain(SampledRecord, json.loads(path.read_text()), path.name, strict=False)
    whole = record.rows[0].images_per_second
    lines = []
    for row in record.rows:
        line = [
            ALL if row.sample is None else f"{row.sample:,}",
            f"{row.images_per_second:,.0f}",
            f"{row.images_per_second / whole:.1f}",
            f"{100 * (row.inertia_ratio - 1):+.1f} %",
        ]
        if row.accuracy is not None and row.standard_error is not None:
            line.append(f"{percent(row.accuracy)} ± {percent(row.standard_error)}")
        lines.append(line)
    heads = ["patches", "images/s", "times as fast", "inertia"]
    heads += ["accuracy, % ± standard error"] if record.classifier else []
    measured = (
        f" Accuracy: {record.classifier}, {record.images} images of nips17 at 224×224, {record.runs} runs."
        if record.classifier
        else ""
    )
    subject = f"swRD (s=3, k=30), {record.side}×{record.side}, batch {record.batch}."
    note = f"\n{subject}{measured} {machine(record.machine)}."
    return "\n".join([*table(heads, lines), note])


SAMPLED_TABLES: dict[str, Callable[[], str]] = {
    f"sampled-{device}": partial(sampled, device) for device in DEVICES
}
