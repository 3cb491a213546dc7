"""The tables of docs/kmeans.md, from benchmarks/results/, for update_docs.py."""

import recorded
from recorded import Record
from tables import table

RECORD = recorded.BENCHMARKS / "palette-cpu.json"
OURS, PEER = "vqshield", "imagequant"


def kmeans() -> str:
    """Problems per second compared with scikit-learn."""
    record = recorded.load(recorded.BENCHMARKS / "kmeans-cpu.json")
    heads = ["problems a CPU second", "vq.kmeans", "scikit-learn", "our inertia / its"]
    lines = [
        [
            f"n={row.points}, d={row['values']}, k={row.centres}",
            f"{row.problems_per_second:,.0f}",
            "–" if row.scikit_learn_per_second is None else f"{row.scikit_learn_per_second:,.0f}",
            "–" if row.inertia_beside_scikit_learn is None else f"{row.inertia_beside_scikit_learn:.3f}",
        ]
        for row in record.rows
    ]
    env = record.environment
    return table(
        heads,
        lines,
        f"Normal points, one k-means++ start, at most {record.rounds} rounds, one thread of "
        f"{env['processor']}, torch {env['torch']}.",
    )


def palette() -> str:
    """Speed and quality compared with other libraries."""
    record = recorded.load(RECORD)
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
    return table(
        heads,
        lines,
        f"vqshield makes {min(times):.1f} to {max(times):.1f} times as many images as {PEER}. "
        f"{record.images} {record.source}, cropped to squares and resized, no dithering, one thread of "
        f"{env['processor']} (load average {record.load[0]:.1f} before, {record.load[1]:.1f} after; the "
        f"methods took turns). {versions}, torch {env['torch']}. {absent}.",
    )


def palette_sizes() -> str:
    """Indexed files compared with those that purify writes."""
    record = recorded.load(RECORD)
    heads = [
        "bytes of a PNG file",
        "`examples/palette.py`",
        "`vqshield purify`, RandDisc, as many centres",
    ]
    lines = [
        [f"{row.side}×{row.side}, {row.colours} colours", f"{row.indexed:,.0f}", f"{row.purified:,.0f}"]
        for row in record.sizes
    ]
    return table(heads, lines)


def _cell(row: Record) -> str:
    speed = row.images_per_cpu_second
    return f"{speed:.0f}; {row.psnr:.2f}" if speed >= 10 else f"{speed:.2g}; {row.psnr:.2f}"


PALETTE_TABLES = {"kmeans": kmeans, "palette": palette, "palette-sizes": palette_sizes}
