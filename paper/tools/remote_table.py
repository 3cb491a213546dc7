"""Query attacks over HTTP and in one process, from benchmarks/results/remote-cpu.json, for docs/remote.md."""

import recorded
from tables import accuracy, machine, table
from vqshield.core.display_names import display_name


def remote() -> str:
    """A row per defense, attack and number of calls."""
    record = recorded.load(recorded.BENCHMARKS / "remote-cpu.json")
    lines = [
        [
            display_name(row.defense),
            row.attack,
            f"{row.calls:,}",
            accuracy(row.logits_mean, row.logits_standard_error) if row.logits_mean is not None else "–",
            accuracy(row.here_mean, row.here_standard_error),
            accuracy(row.remote_mean, row.remote_standard_error),
        ]
        for row in record.rows
    ]
    return table(
        ["defense", "attack", "calls", "all logits, in process", "answers as served, in process", "HTTP"],
        lines,
        f"Accuracy in % ± standard error over {record.images} images, ε = 8/255 (L∞), 8-bit images in both. "
        "`vqshield serve` answers with the class and its probability, in float32. "
        f"{machine(record.machine)}.",
    )
