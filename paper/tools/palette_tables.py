"""The tables of docs/kmeans.md, from benchmarks/results/, for update_docs.py."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import recorded
from tables import table
from vqshield.core.serialization import Json

RESULTS = Path(__file__).resolve().parents[2] / "benchmarks" / "results"
RECORD = RESULTS / "palette-cpu.json"
OURS, PEER = "vqshield", "imagequant"


@dataclass(frozen=True, kw_only=True)
class Row:
    """One method at one size."""

    method: str
    side: int
    colours: int
    images_per_cpu_second: float
    psnr: float


@dataclass(frozen=True, kw_only=True)
class Size:
    """Bytes of PNG files."""

    side: int
    colours: int
    indexed: float
    purified: float


@dataclass(frozen=True, kw_only=True)
class PaletteRecord:
    """What benchmarks/palette.py wrote."""

    source: str
    images: int
    load: tuple[float, ...]
    versions: Mapping[str, str]
    absent: Mapping[str, str]
    environment: Mapping[str, Json]
    rows: tuple[Row, ...]
    sizes: tuple[Size, ...]


@dataclass(frozen=True, kw_only=True)
class Problems:
    """Small k-means problems of one size."""

    problems: int
    points: int
    values: int
    centres: int
    problems_per_second: float
    scikit_learn_per_second: float | None
    inertia_beside_scikit_learn: float | None


@dataclass(frozen=True, kw_only=True)
class ProblemsRecord:
    """What benchmarks/kmeans.py wrote."""

    rounds: int
    environment: Mapping[str, Json]
    rows: tuple[Problems, ...]


def kmeans() -> str:
    """Problems a second beside scikit-learn."""
    record = recorded.read(ProblemsRecord, RESULTS / "kmeans-cpu.json")
    heads = ["problems a CPU second", "vq.kmeans", "scikit-learn", "our inertia / its"]
    lines = [
        [
            f"n={row.points}, d={row.values}, k={row.centres}",
            f"{row.problems_per_second:,.0f}",
            "–" if row.scikit_learn_per_second is None else f"{row.scikit_learn_per_second:,.0f}",
            "–" if row.inertia_beside_scikit_learn is None else f"{row.inertia_beside_scikit_learn:.3f}",
        ]
        for row in record.rows
    ]
    env = record.environment
    return "\n".join(
        [
            *table(heads, lines),
            f"\nNormal points, one k-means++ start, at most {record.rounds} rounds, one thread of "
            f"{env['processor']}, torch {env['torch']}.",
        ]
    )


def palette() -> str:
    """Speed and quality beside other libraries."""
    record = recorded.read(PaletteRecord, RECORD)
    cases = list(dict.fromkeys((row.side, row.colours) for row in record.rows))
    found = {(row.method, row.side, row.colours): row for row in record.rows}
    methods = list(dict.fromkeys(row.method for row in record.rows))
    heads = ["images a CPU second; PSNR in dB", *(f"{side}×{side}, {k} colours" for side, k in cases)]
    lines = [[name, *(_cell(found[name, *case]) for case in cases)] for name in methods]
    times = [
        found[OURS, *case].images_per_cpu_second / found[PEER, *case].images_per_cpu_second for case in cases
    ]
    versions = ", ".join(f"{name} {version}" for name, version in record.versions.items())
    absent = "; ".join(f"{name}: {why}" for name, why in record.absent.items())
    env = record.environment
    return "\n".join(
        [
            *table(heads, lines),
            f"\nvqshield makes {min(times):.1f} to {max(times):.1f} times as many images as {PEER}. "
            f"{record.images} {record.source}, cropped to squares and resized, no dithering, one thread of "
            f"{env['processor']} (load average {record.load[0]:.1f} before, {record.load[1]:.1f} after; the "
            f"methods took turns). {versions}, torch {env['torch']}. {absent}.",
        ]
    )


def palette_sizes() -> str:
    """Indexed files compared with those that purify writes."""
    record = recorded.read(PaletteRecord, RECORD)
    heads = [
        "bytes of a PNG file",
        "`examples/palette.py`",
        "`vqshield purify`, RandDisc, as many centres",
    ]
    lines = [
        [f"{row.side}×{row.side}, {row.colours} colours", f"{row.indexed:,.0f}", f"{row.purified:,.0f}"]
        for row in record.sizes
    ]
    return "\n".join(table(heads, lines))


def _cell(row: Row) -> str:
    speed = row.images_per_cpu_second
    return f"{speed:.0f}; {row.psnr:.2f}" if speed >= 10 else f"{speed:.2g}; {row.psnr:.2f}"


PALETTE_TABLES = {"kmeans": kmeans, "palette": palette, "palette-sizes": palette_sizes}
