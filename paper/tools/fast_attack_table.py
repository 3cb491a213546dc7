"""What faster attacks save and cost, for docs/attacks.md, from what benchmarks/attacks.py wrote."""

from collections.abc import Callable

import recorded
from tables import accuracy, machine, table
from vqshield.core.display_names import display_defense

QUICK = "adaptive-v1-quick"
BEFORE, OLDER = "before", ", by an older version"


def fast_attacks() -> str:
    """A suite in every precision, on every machine and behind every defense that was measured."""
    lines, machines = [], []
    for path in sorted(recorded.BENCHMARKS.glob("attacks-*.json")):
        record = recorded.load(path)
        # The last of several: the first run of a size of batch also pays for the choice of kernels.
        whole = list({(row.images, row.precision): row for row in record.suites if row.seconds}.values())
        usual = {row.images: row.seconds for row in whole if row.precision == "float32"}
        usual |= {row.images: row.seconds for row in whole if row.precision == BEFORE}
        name = recorded.stem(record.classifier)
        used = f"{name} on {machine(record.machine)}"
        machines += [used] if used not in machines else []
        for row in whole:
            if row.images not in usual:
                continue
            before = usual[row.images]
            lines.append([
                f"{display_defense(record.defense)}, {name}, {record.machine['device']}",
                f"`{row.attack}`{OLDER if row.precision == BEFORE else ''}", f"{row.images:,}",
                accuracy(row.accuracy, row.standard_error, 2), f"{row.seconds:.1f}",
                f"{before / row.seconds:.1f}",
            ])  # fmt: skip
    heads = ["", "attack", "images", "left, % ± standard error", "s", "times as fast"]
    note = (
        f"With clean accuracy, selection and report; on a CPU, CPU seconds of one thread. "
        f"{'; '.join(machines)}. Written by benchmarks/attacks.py."
    )
    return table(heads, lines, note)


def first_look(suite: str) -> str:
    """After a ladder by the quick suite: the bundled tuned shield under the whole suite."""
    return f" `{QUICK}` is a first look: {whole_suite('the tuned shield')}." if suite == QUICK else ""


def whole_suite(tuned: str) -> str:
    """Accuracy of the bundled tuned shield under adaptive-v1."""
    record = recorded.load(recorded.BENCHMARKS / "attacks-cpu-hardened.json")
    found = next(row for row in record.suites if row.attack == "adaptive-v1" and row.precision == "float32")
    return (
        f"under `{found.attack}`, {tuned} has {accuracy(found.accuracy, found.standard_error)} "
        f"% ({found.images} images)"
    )


FAST_TABLES: dict[str, Callable[[], str]] = {"attack-fast": fast_attacks}
