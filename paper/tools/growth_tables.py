"""How speed and memory grow: the tables and plots of docs/speed-tables.md, from growth-DEVICE.json, and what
they are for bytes and halves, from kinds-DEVICE.json."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import recorded
from recorded import Machine
from speed_tables import DEVICES, RESULTS
from tables import machine, table, unmeasured

NAMES = {
    "batch": "batch", "side": "side of the image", "size": "s", "codes": "k", "iterations": "iterations",
    "threads": "threads",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class GrowthPoint:
    """A point of benchmarks/growth.py."""

    axis: str
    value: int
    images_per_second: float
    peak_bytes: int
    batch: int = 1
    dtype: str = "float32"


@dataclass(frozen=True, kw_only=True)
class Exponents:
    """The powers that it fitted on one axis."""

    axis: str
    time: float
    time_at_the_end: float
    memory: float | None
    memory_at_the_end: float | None


@dataclass(frozen=True, kw_only=True)
class GrowthRecord:
    """What benchmarks/growth.py wrote."""

    machine: Machine
    points: tuple[GrowthPoint, ...]
    exponents: tuple[Exponents, ...]


def read(device: str, what: str = "growth") -> GrowthRecord | None:
    """The record of a device, None where none is kept."""
    path = RESULTS / f"{what}-{device}.json"
    if not path.is_file():
        return None
    return recorded.read(GrowthRecord, path)


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
    return "\n".join([*table(heads, rows), f"\n{machine(record.machine)}."])


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
    return "\n".join([*table(heads, rows), f"\n{machine(record.machine)}."])


def _power(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}".replace("-", "−")


def _rate(images: float) -> str:
    return f"{images:,.0f}" if images >= 100 else f"{images:.1f}"


GROWTH_TABLES: dict[str, Callable[[], str]] = {
    name: partial(make, device)
    for device in DEVICES
    for name, make in ((f"growth-{device}", growth), (f"growth-{device}-plot", plot))
} | {"kinds-cpu": partial(kinds, "cpu")}
