"""How often a gate fails, from benchmarks/results/gate-power.json, for docs/gate.md."""

import recorded
from tables import percent, table


def gate_power() -> str:
    """The share of builds that fail, by scenario and number of images, for each true drop."""
    record = recorded.load(recorded.BENCHMARKS / "gate-power.json")
    drops = list(dict.fromkeys(row.drop for row in record.rows))
    tolerances = list(dict.fromkeys(row.tolerance for row in record.rows))
    failed = {(row.scenario, row.n, row.drop, row.tolerance): row.failed for row in record.rows}
    lines = [
        [scenario, f"{n:,}", f"{100 * tolerance:g}"]
        + [percent(failed[scenario, n, drop, tolerance]) for drop in drops]
        for scenario, n in dict.fromkeys((row.scenario, row.n) for row in record.rows)
        for tolerance in tolerances
    ]
    most, checks = max(row.failed for row in record.together), record.together[0].checks
    return table(
        ["images that change anyway", "N", "tolerance", *(f"drop {100 * drop:g}" for drop in drops)],
        lines,
        f"Builds that fail, in %, of {record.repetitions:,} simulated ones, by the true drop in points; one "
        f"check at level {record.level:g}, accuracy {100 * record.accuracy:g} %; standard error at most "
        f"{percent(record.largest_error)}. With {checks} checks and no drop, at most {percent(most)} % fail.",
    )
