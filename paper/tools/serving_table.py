"""The numbers of docs/serving.md, from benchmarks/results/serving-cpu.json, for update_docs.py."""

from collections.abc import Mapping

import recorded
from recorded import Record
from tables import table
from vqshield.core.display_names import display_name

RECORD = recorded.BENCHMARKS / "serving-cpu.json"


def serving() -> str:
    """Latency of one image, the load test, and what a kill and a stop cost."""
    record = recorded.load(RECORD)
    sides = sorted({each.side for each in record.shields})
    names = list(dict.fromkeys(each.defense for each in record.shields))
    times = {(each.defense, each.side): each.milliseconds for each in record.shields}
    shields = table(
        ["one image through the shield alone, ms", *(f"{side}×{side}" for side in sides)],
        [[display_name(name), *(f"{times[name, side]:.2g}" for side in sides)] for name in names],
    )
    full, one, env = record.full_load, record.one_connection, record.environment
    loads = table(
        ["through HTTP, 32×32, bundled classifier", "requests/s", "p50, ms", "p95, ms", "p99, ms"],
        [
            ["1 connection", "–", *_milliseconds(one)],
            [
                f"{record.connections} connections",
                f"{full.requests_per_second:.0f}",
                *_milliseconds(full.latency),
            ],
        ],
    )
    before, after = (average[0] for average in (record.load_average_before, record.load_average_after))
    kill, restart, stop, server = record.kill, record.restart, record.stop, record.server
    lines = [
        shields,
        "",
        loads,
        "",
        f"- {full.seconds:.0f} s at full load: {full.latency.requests:,} requests, "
        f"{_errors(full.statuses, full.lost)}, {full.images_per_batch:.1f} images a batch. "
        f"Memory: {full.rss_mib[0]:.0f} MiB at the start, {full.rss_mib[-1]:.0f} at the end, "
        f"{full.peak_rss_mib:.0f} at most.",
        f"- Killed (SIGKILL): {kill.in_flight_lost + kill.later_lost} requests lost on "
        f"{record.connections} connections: {kill.in_flight_lost} of the {kill.in_flight} under way, and "
        f"{kill.later_lost} sent before the process was gone. "
        f"Ready again {restart.seconds_to_ready:.1f} s after the new start; "
        f"{restart.connections_that_serve} of {record.connections} connections served, "
        f"{restart.answered:,} requests, {_errors(restart.statuses, restart.lost)}.",
        f"- Stopped (SIGTERM): {stop.in_flight_lost} of the {stop.in_flight} requests under way lost; "
        f"{stop.later_lost} that were sent afterwards met a closing connection.",
        "",
        f"{display_name(str(server['defense']).lower())}, backend {server['backend']}, {server['threads']} "
        f"threads; {env['processor']}, {env['cores']} cores, shared by server and load generator (load "
        f"average {before:.1f} before, {after:.1f} after; more than the cores before means that other "
        f"programs ran); torch {env['torch']}.",
    ]
    return "\n".join(lines)


def _milliseconds(latency: Record) -> list[str]:
    return [f"{each:.1f}" for each in (latency.p50, latency.p95, latency.p99)]


def _errors(statuses: Mapping[str, int], lost: int) -> str:
    wrong = sum(count for status, count in statuses.items() if status != "200") + lost
    return "no error" if wrong == 0 else f"{wrong} errors"
