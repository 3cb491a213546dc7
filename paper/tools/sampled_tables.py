"""What a codebook from some of the patches saves and costs, for docs/speed.md, from sampled-DEVICE.json."""

from collections.abc import Callable
from functools import partial

import recorded
from speed_tables import DEVICES
from tables import accuracy, machine, table, unmeasured
from vqshield_paper.speed import read_record
from vqshield_paper.speed.record import SampledRecord

ALL = "all"


def sampled(device: str) -> str:
    """One line a size of the sample."""
    path = recorded.BENCHMARKS / f"sampled-{device}.json"
    if not path.is_file():
        return unmeasured(f"benchmarks/sampled.py --device {device}")
    record = read_record(SampledRecord, path)
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
            line.append(accuracy(row.accuracy, row.standard_error))
        lines.append(line)
    heads = ["patches", "images/s", "times as fast", "inertia"]
    heads += ["accuracy, % ± standard error"] if record.classifier else []
    measured = (
        f" Accuracy: {record.classifier}, {record.images} images of nips17 at 224×224, {record.runs} runs."
        if record.classifier
        else ""
    )
    subject = f"swRD (s=3, k=30), {record.side}×{record.side}, batch {record.batch}."
    note = f"{subject}{measured} {machine(record.machine)}."
    return table(heads, lines, note)


SAMPLED_TABLES: dict[str, Callable[[], str]] = {
    f"sampled-{device}": partial(sampled, device) for device in DEVICES
}
