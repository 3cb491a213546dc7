"""What faster attacks save and cost, for docs/attacks.md, from what benchmarks/attacks.py wrote."""

from collections.abc import Callable
from dataclasses import dataclass

from recorded import Machine, read, stem
from speed_tables import RESULTS
from tables import machine, table
from vqshield.core.display_names import display_defense

QUICK = "adaptive-v1-quick"
BEFORE, OLDER = "before", ", by an older version"


@dataclass(frozen=True, kw_only=True)
class SuiteRow:
    """What a suite, or a member of one, left in one precision; seconds: of a whole suite."""

    precision: str
    images: int
    attack: str
    accuracy: float
    standard_error: float
    seconds: float | None


@dataclass(frozen=True, kw_only=True)
class FastRecord:
    """What benchmarks/attacks.py wrote."""

    machine: Machine
    defense: str
    classifier: str
    suites: tuple[SuiteRow, ...]


def fast_attacks() -> str:
    """A suite in every precision, on every machine and behind every defense that was measured."""
    lines, machines = [], []
    for path in sorted(RESULTS.glob("attacks-*.json")):
        record = read(FastRecord, path)
        # The last of several: the first run of a size of batch also pays for the choice of kernels.
        whole = list({(row.images, row.precision): row for row in record.suites if row.seconds}.values())
        usual = {row.images: row.seconds for row in whole if row.precision == "float32"}
        usual |= {row.images: row.seconds for row in whole if row.precision == BEFORE}
        used = f"{stem(record.classifier)} on {machine(record.machine)}"
        machines += [used] if used not in machines else []
        for row in whole:
            if row.images not in usual:
                continue
            assert row.seconds is not None
            before = usual[row.images]
            assert before is not None
            lines.append([
                f"{display_defense(record.defense)}, {stem(record.classifier)}, {record.machine['device']}",
                f"`{row.attack}`{OLDER if row.precision == BEFORE else ''}", f"{row.images:,}",
                f"{100 * row.accuracy:.2f} ± {100 * row.standard_error:.2f}", f"{row.seconds:.1f}",
                f"{before / row.seconds:.1f}",
            ])  # fmt: skip
    heads = ["", "attack", "images", "left, % ± standard error", "s", "times as fast"]
    note = (
        f"\nWith natural accuracy, selection and report; on a CPU, CPU seconds of one thread. "
        f"{'; '.join(machines)}. Written by benchmarks/attacks.py."
    )
    return "\n".join([*table(heads, lines), note])


def first_look(suite: str) -> str:
    """After a ladder by the quick suite: the bundled tuned shield under the whole suite."""
    return f" `{QUICK}` is a first look: {whole_suite('the tuned shield')}." if suite == QUICK else ""


def whole_suite(tuned: str) -> str:
    """Accuracy of the bundled tuned shield under adaptive-v1."""
    record = read(FastRecord, RESULTS / "attacks-cpu-hardened.json")
    found = next(row for row in record.suites if row.attack == "adaptive-v1" and row.precision == "float32")
    return (
        f"under `{found.attack}`, {tuned} has {100 * found.accuracy:.1f} ± "
        f"{100 * found.standard_error:.1f} % ({found.images} images)"
    )


FAST_TABLES: dict[str, Callable[[], str]] = {"attack-fast": fast_attacks}
