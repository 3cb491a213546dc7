"""What benchmarks/speed.py has written, and how its rows are read."""

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
MARK = "†"

Record = dict[str, Any]


def read(device: str) -> Record | None:
    """The record of a device, None where none is kept."""
    path = ROOT / "benchmarks" / "results" / f"speed-{device}.json"
    if not path.is_file():
        return None
    record: Record = json.loads(path.read_text())
    return record


def cell(row: dict[str, Any]) -> str:
    """A rate, marked where the row has a note."""
    return shown(row["images_per_second"]) + (f" {MARK}" if row["note"] else "")


def sides(record: Record, workload: str, threads: int) -> tuple[dict[str, float], dict[str, float]]:
    """Rates of k-means, ours and the others'."""
    ours: dict[str, float] = {}
    others: dict[str, float] = {}
    for row in record["rows"]:
        if (row["workload"], row["step"], row["threads"]) == (workload, "kmeans", threads):
            mine = record["implementations"][row["implementation"]]["ours"]
            (ours if mine else others)[row["implementation"]] = row["images_per_second"]
    return ours, others


def key(row: dict[str, Any]) -> tuple[str, str, str, str, int]:
    """What tells a row from the others."""
    return row["workload"], row["implementation"], row["step"], row["settings"], row["threads"]


def thread_counts(record: Record) -> list[int]:
    """The numbers of threads that were measured."""
    return sorted({row["threads"] for row in record["rows"]})


def our_names(record: Record) -> list[str]:
    """The names of this library's implementations."""
    return [name for name, each in record["implementations"].items() if each["ours"]]


def shown(images: float) -> str:
    """A rate as it stands in a table."""
    return f"{images:,.0f}" if images >= 100 else f"{images:.1f}"
