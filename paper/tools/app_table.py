"""The tables of docs/app.md for update_docs.py: the limits, and benchmarks/results/app-load.json."""

import recorded
from tables import table
from vqshield_app.subjects import Limits

RECORD = recorded.BENCHMARKS / "app-load.json"


def limits() -> str:
    """What is taken from visitors."""
    taken = Limits()
    return table(
        ["what", "at most", "beyond it"],
        [
            ["bytes of a file", f"{taken.max_bytes >> 20} MiB", "refused while it is uploaded"],
            ["pixels, by the file's header", f"{taken.max_pixels:,}", "a message, nothing is unpacked"],
            ["longer side", f"{taken.max_side} pixels", "reduced to that, and the page says so"],
            ["time of an attack", f"{taken.attack_seconds:g} s", "stopped, with a message"],
            ["calls that wait", str(taken.waiting), "refused, with a message"],
        ],
    )


def load() -> str:
    """Ten sessions for a minute."""
    record = recorded.load(RECORD)
    rows = [
        [name, str(each.requests), *(f"{value / 1000:.2f}" for value in (each.p50, each.p95))]
        for name, each in (("shield", record.shield), ("attack", record.attack))
    ]
    share = record.server_cpu_seconds / record.seconds
    wrong, memory, used = sum(record.errors.values()), record.rss_mib, record.environment
    before, after = (average[0] for average in (record.load_average_before, record.load_average_after))
    return table(
        ["call", "N", "p50, s", "p95, s"],
        rows,
        f"{record.sessions} sessions at once for {record.seconds:.0f} s, none of them resting: "
        f"{'no error' if wrong == 0 else f'{wrong} errors'}. Memory: {memory[0]:.0f} MiB at the start, "
        f"{memory[len(memory) // 2]:.0f} in the middle, {memory[-1]:.0f} at the end; pictures on disk, "
        f"cleared away after an hour: {record.stored_mib[1]:.1f} MiB. {used['processor']}, "
        f"{used['cores']} cores, shared by server and sessions (load average {before:.1f} before, "
        f"{after:.1f} after; more than the cores before means that other programs ran; the server "
        f"had {share:.1f} cores' time); Gradio "
        f"{record.packages['gradio']}, torch {used['torch']}.",
    )


APP_TABLES = {"app-limits": limits, "app-load": load}
