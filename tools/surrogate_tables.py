"""What docs/speed.md says of gradients through the shield, from surrogates-cpu.json and demo-speed.json."""

import json
from collections.abc import Callable
from dataclasses import dataclass

from speed_tables import RESULTS

from vqshield.plain import from_plain


@dataclass(frozen=True, kw_only=True)
class SurrogateRow:
    """A row of benchmarks/surrogates.py."""

    defense: str
    side: int
    batch: int
    implementation: str
    forward: float
    backward: float
    peak_mb: float
    distance: float


@dataclass(frozen=True, kw_only=True)
class SurrogateRecord:
    """What benchmarks/surrogates.py wrote."""

    rows: tuple[SurrogateRow, ...]


@dataclass(frozen=True, kw_only=True)
class DemoSpeed:
    """What benchmarks/demo_speed.py wrote."""

    images: int
    before: tuple[float, ...]
    after: tuple[float, ...]
    ratio: float


def surrogates() -> str:
    """The soft surrogate's gradient in torch and by the native kernel."""
    content = json.loads((RESULTS / "surrogates-cpu.json").read_text())
    record = from_plain(SurrogateRecord, content, "surrogates-cpu.json", strict=False)
    lines = [
        "| defense | image | batch | CPU ms, torch | native | ratio | MB, torch | native "
        "| distance from float64, torch | native |",
        "|---" * 10 + "|",
    ]
    found = {(row.defense, row.side, row.batch, row.implementation): row for row in record.rows}
    for row in record.rows:
        if row.implementation != "torch":
            continue
        other = found[row.defense, row.side, row.batch, "native"]
        before, after = (1000 * (each.forward + each.backward) for each in (row, other))
        lines.append(
            f"| {row.defense} | {row.side}×{row.side} | {row.batch} | {before:.1f} | {after:.1f} "
            f"| {before / after:.1f} | {row.peak_mb:.0f} | {other.peak_mb:.0f} | {row.distance:.0e} "
            f"| {other.distance:.0e} |"
        )
    return "\n".join(lines)


def demo_speed() -> str:
    """The demo's measuring part before and after."""
    content = json.loads((RESULTS / "demo-speed.json").read_text())
    record = from_plain(DemoSpeed, content, "demo-speed.json", strict=False)
    before, after = (" and ".join(f"{each:.0f}" for each in side) for side in (record.before, record.after))
    return (
        f"The measuring part of `vqshield demo` ({record.images} images, one thread) took {before} CPU "
        f"seconds before, and {after} with this kernel, each codebook found once, the classifier asked in "
        f"smaller batches, and images that are lost for certain left alone; the runs took turns: "
        f"{record.ratio:.2f} times as fast."
    )


SURROGATE_TABLES: dict[str, Callable[[], str]] = {"speed-surrogates": surrogates, "speed-demo": demo_speed}
