"""How speed and memory grow: the tables and plots of docs/speed-tables.md, from growth-DEVICE.json, and what
they are for bytes and halves, from kinds-DEVICE.json."""

from collections.abc import Callable
from functools import partial

import recorded
from recorded import Record
from speed_tables import DEVICES
from tables import machine, table, unmeasured

NAMES = {
    "batch": "batch", "side": "side of the image", "size": "s", "codes": "k", "iterations": "iterations",
    "threads": "threads",
}  # fmt: skip


def read(device: str, what: str = "growth") -> Record | None:
    """The record of a device, None where none is kept."""
    path = recorded.BENCHMARKS / f"{what}-{device}.json"
    if not path.is_file():
        return None
    return recorded.load(path)


def growth(device: str) -> str:
    """One row an axis: the powers, and what was measured at each setting."""
    record = read(device)
    if record is None:
        return unmeasured(f"benchmarks/growth.py --device {device}")
    heads = [
        "setting",
        "power of time",
        "at the end",
        "power of memory",
        "at the end",
        "value: images/s, MB a call",
    ]
    rows = []
    for each in record.exponents:
        points = [point for point in record.points if point.axis == each.axis]
        rows.append(
            [
                NAMES[each.axis],
                *map(_power, (each.time, each.time_at_the_end, each.memory, each.memory_at_the_end)),
                "; ".join(
                    f"{point.value}: {_rate(point.images_per_second)}, {point.peak_bytes / 1e6:.1f}"
                    for point in points
                ),
            ]
        )
    return table(
        heads,
        rows,
        f"{machine(record.machine)}.",
    )


def plot(device: str) -> str:
    """The picture of the same run."""
    if read(device) is None:
        return unmeasured(f"benchmarks/growth.py --device {device}")
    return f"![Time and memory over each setting](images/growth-{device}.png)"


def kinds(device: str) -> str:
    """One row a size of images and dtype."""
    record = read(device, "kinds")
    if record is None:
        return unmeasured(f"benchmarks/growth.py --device {device} --kinds")
    heads = ["images", "dtype", "images/s", "MB a call"]
    rows = [
        [
            f"{point.batch} of {point.value}×{point.value}",
            point.dtype,
            _rate(point.images_per_second),
            f"{point.peak_bytes / 1e6:.1f}",
        ]
        for point in record.points
    ]
    return table(
        heads,
        rows,
        f"{machine(record.machine)}.",
    )


def _power(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}".replace("-", "−")


def _rate(images: float) -> str:
    return f"{images:,.0f}" if images >= 100 else f"{images:.1f}"


GROWTH_TABLES: dict[str, Callable[[], str]] = {
    name: partial(make, device)
    for device in DEVICES
    for name, make in ((f"growth-{device}", growth), (f"growth-{device}-plot", plot))
} | {"kinds-cpu": partial(kinds, "cpu")}
