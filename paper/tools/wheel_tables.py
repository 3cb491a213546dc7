"""The tables of docs/releasing.md, from benchmarks/results/, for update_docs.py."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import recorded
from tables import percent, table
from vqshield.core.serialization import Json

RESULTS = Path(__file__).resolve().parents[2] / "benchmarks" / "results"


@dataclass(frozen=True, kw_only=True)
class Core:
    """What the core needs."""

    requires: tuple[str, ...]
    downloaded: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Doctor:
    """What `vqshield doctor` says there."""

    python: str
    processor: str
    kernel: str
    packages: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class File:
    """One file of a release, installed."""

    file: str
    kernel: str
    as_the_kernel: float


@dataclass(frozen=True, kw_only=True)
class WheelRecord:
    """What tools/check_wheels.py wrote."""

    core: Core
    doctor: Doctor
    files: tuple[File, ...]


@dataclass(frozen=True, kw_only=True)
class Emulated:
    """A result of the emulated kernel beside this machine's."""

    beside: str
    values: int
    equal: float
    furthest: float


@dataclass(frozen=True, kw_only=True)
class EmulatedRecord:
    """What native/emulated.py wrote."""

    emulator: str
    images: int
    environment: Mapping[str, Json]
    rows: tuple[Emulated, ...]


def wheels() -> str:
    """The files of a release in an empty environment."""
    record = recorded.read(WheelRecord, RESULTS / "wheels.json")
    lines = [[row.file, row.kernel, f"{percent(row.as_the_kernel)}%"] for row in record.files]
    said = record.doctor
    others = [each.rpartition("-")[0] for each in record.core.downloaded]
    theirs = [each for each in others if each not in (*record.core.requires, "vqshield")]
    return "\n".join(
        [
            *table(["installed", "quantizes with", "values as the wheel's kernel gives them"], lines),
            f"\nEmpty environments of Python {said.python}, no compiler in reach, torch "
            f"{said.packages['torch']}; `vqshield demo` ran there with {said.kernel} on {said.processor}. "
            f"`pip download` of the core took {', '.join(record.core.requires)}, and what those need: "
            f"{', '.join(theirs)}.",
        ]
    )


def emulated() -> str:
    """The kernel for aarch64 beside those of this machine."""
    record = recorded.read(EmulatedRecord, RESULTS / "emulated-aarch64.json")
    lines = []
    for build in dict.fromkeys(row.beside for row in record.rows):
        rows = [row for row in record.rows if row.beside == build]
        total = sum(row.values for row in rows)
        equal = sum(row.values * row.equal for row in rows) / total
        furthest = max(row.furthest for row in rows)
        lines.append([build, f"{total:,}", f"{percent(equal)}%", f"{furthest:.0e}" if furthest else "0"])
    return "\n".join(
        [
            *table(["beside the build", "values", "equal bit for bit", "furthest apart"], lines),
            f"\n{record.emulator}: shields, codebooks and k-means of {record.images} bundled images.",
        ]
    )


WHEEL_TABLES = {"wheels": wheels, "emulated": emulated}
