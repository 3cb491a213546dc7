"""The tables of docs/releasing.md, from benchmarks/results/, for update_docs.py."""

import recorded
from tables import percent, table


def wheels() -> str:
    """The files of a release in an empty environment."""
    record = recorded.load(recorded.BENCHMARKS / "wheels.json")
    lines = [[row.file, row.kernel, f"{percent(row.as_the_kernel)}%"] for row in record.files]
    said = record.doctor
    others = [each.rpartition("-")[0] for each in record.core.downloaded]
    theirs = [each for each in others if each not in (*record.core.requires, "vqshield")]
    return table(
        ["installed", "quantizes with", "values as the wheel's kernel gives them"],
        lines,
        f"Empty environments of Python {said.python}, no compiler in reach, torch "
        f"{said.packages['torch']}; `vqshield demo` ran there with {said.kernel} on {said.processor}. "
        f"`pip download` of the core took {', '.join(record.core.requires)}, and what those need: "
        f"{', '.join(theirs)}.",
    )


def emulated() -> str:
    """The kernel for aarch64 compared with those of this machine."""
    record = recorded.load(recorded.BENCHMARKS / "emulated-aarch64.json")
    lines = []
    for build in dict.fromkeys(row.beside for row in record.rows):
        rows = [row for row in record.rows if row.beside == build]
        total = sum(row["values"] for row in rows)
        equal = sum(row["values"] * row.equal for row in rows) / total
        furthest = max(row.furthest for row in rows)
        lines.append([build, f"{total:,}", f"{percent(equal)}%", f"{furthest:.0e}" if furthest else "0"])
    return table(
        ["build", "values", "equal bit for bit", "furthest apart"],
        lines,
        f"{record.emulator}: shields, codebooks and k-means of {record.images} bundled images.",
    )


WHEEL_TABLES = {"wheels": wheels, "emulated": emulated}
