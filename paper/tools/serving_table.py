"""The numbers of docs/serving.md, from benchmarks/results/serving-cpu.json, for update_docs.py."""

from collections.abc import Mapping

import recorded
from recorded import Record
from tables import table
from vqshield.core.display_names import display_name

RECORD = recorded.BENCHMARKS / "serving-cpu.json"


def serving() -> str:
    """Latency of one image, the load tests, what a kill and a stop cost, and hostile requests."""
    record = recorded.load(RECORD)
    sides = sorted({each.side for each in record.shields})
    names = list(dict.fromkeys(each.defense for each in record.shields))
    times = {(each.defense, each.side): each.milliseconds for each in record.shields}
    shields = table(
        ["one image through the shield alone, ms", *(f"{side}×{side}" for side in sides)],
        [[display_name(name), *(f"{times[name, side]:.2g}" for side in sides)] for name in names],
    )
    one, env = record.one_connection, record.environment
    loads = table(
        [
            "through HTTP, 32×32, bundled classifier", "requests/s", "p50, ms", "p95, ms", "p99, ms",
            "errors", "memory, MiB: start", "end", "most",
        ],
        [
            ["1 connection, 1 vote", "–", *_milliseconds(one), "–", "–", "–", "–"],
            *(
                [
                    f"{record.connections} connections, {full.votes} vote{'s' * (full.votes > 1)}, "
                    f"{full.seconds:.0f} s",
                    f"{full.requests_per_second:.0f}",
                    *_milliseconds(full.latency),
                    f"{_wrong(full.statuses, full.lost)} of {full.latency.requests:,}",
                    *(f"{mib:.0f}" for mib in (full.rss_mib[0], full.rss_mib[-1], full.peak_rss_mib)),
                ]
                for full in record.full_load
            ),
        ],
    )  # fmt: skip
    before, after = (average[0] for average in (record.load_average_before, record.load_average_after))
    kill, restart, stop, server = record.kill, record.restart, record.stop, record.server
    agreed, hostile = record.agreement, record.hostile
    lines = [
        shields,
        "",
        loads,
        "",
        f"- Killed (SIGKILL): {kill.in_flight_lost + kill.later_lost} requests lost on "
        f"{record.connections} connections: {kill.in_flight_lost} of the {kill.in_flight} under way, and "
        f"{kill.later_lost} sent before the process was gone. "
        f"Ready again {restart.seconds_to_ready:.1f} s after the new start; "
        f"{restart.connections_that_serve} of {record.connections} connections served, "
        f"{restart.answered:,} requests, {_errors(restart.statuses, restart.lost)}.",
        *(
            f"- Stopped (SIGTERM) with {votes}: {each.in_flight_lost} of the {each.in_flight} requests under "
            f"way lost, {each.later_lost} of those that were sent afterwards; exit code {each.exit_code} "
            f"after {each.seconds_to_exit:.1f} s."
            for votes, each in (("1 vote", stop), (f"{agreed.votes} votes", record.stop_voting))
        ),
        f"- Served answers equal those of `vq.Voting` with the same seed for {agreed.equal} of "
        f"{agreed.images} images ({agreed.votes} votes; {agreed.abstained} abstentions).",
        f"- {hostile.requests} hostile requests in {hostile.seconds:.0f} s (no pictures, decompression "
        "bombs, slow and aborted uploads, wrong keys, broken headers and forms): "
        f"{len(hostile.wrong)} with a server error, a hang, a path or a traceback in the response. "
        f"An honest request afterwards: {hostile.honest_status_afterwards}. "
        f"Memory: {hostile.peak_rss_mib:.0f} MiB at most.",
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
    wrong = _wrong(statuses, lost)
    return "no error" if wrong == 0 else f"{wrong} errors"


def _wrong(statuses: Mapping[str, int], lost: int) -> int:
    return sum(count for status, count in statuses.items() if status != "200") + lost
