"""How often does a gate fail a build that is not worse, and find one that is? With simulated truth.

    python benchmarks/gate_power.py --record benchmarks/results/gate-power.json

In every repetition new images are drawn, then the samples of two runs. The true drop is known. The scenarios
differ in how many images change for another reason than the drop: none, some (another seed or machine), and a
random defense with ten samples per image.
"""

import argparse
import json
import math
from collections.abc import Callable
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np

from vqshield_deploy.gating.statistics import Shares, holm, paired_change

LEVEL, ACCURACY = 0.05, 0.6
SIZES, DROPS, TOLERANCES = (200, 1000), (0.0, 0.02, 0.05), (0.0, 0.02)
SAMPLES = 10
Pair = tuple[Shares, Shares]


def deterministic(churn: float) -> Callable[[np.random.Generator, int, float], Pair]:
    """One sample per image; a share of the images changes either way, besides the drop."""

    def pair(generator: np.random.Generator, n: int, drop: float) -> Pair:
        kind = generator.random(n)
        worse, better = kind < churn / 2 + drop, kind > 1 - churn / 2
        same = generator.random(n) < (ACCURACY - churn / 2 - drop) / (1 - churn - drop)
        before, after = worse | (~better & same), better | (~worse & same)
        return Shares(tuple(before.astype(int).tolist()), 1), Shares(tuple(after.astype(int).tolist()), 1)

    return pair


def random_defense(generator: np.random.Generator, n: int, drop: float) -> Pair:
    """Ten samples per image; the chance of a right one differs from image to image, and falls."""
    before = generator.beta(0.6, 0.4, n)
    after = before * (1 - drop / ACCURACY)
    drawn = [generator.binomial(SAMPLES, chance) for chance in (before, after)]
    first, second = (Shares(tuple(each.tolist()), SAMPLES) for each in drawn)
    return first, second


SCENARIOS = {
    "no other change": deterministic(0.0),
    "5 % of the images change": deterministic(0.05),
    "random defense, 10 samples": random_defense,
}


def simulate(*, repetitions: int, seed: int = 0) -> list[dict[str, Any]]:
    """For each scenario, size, drop and tolerance: the share of builds that fail, with one check."""
    generator, rows = np.random.default_rng(seed), []
    for name, scenario in SCENARIOS.items():
        for n in SIZES:
            for drop in DROPS:
                pairs = [scenario(generator, n, drop) for _ in range(repetitions)]
                for tolerance in TOLERANCES:
                    found = [paired_change(*pair, tolerance=tolerance) for pair in pairs]
                    spread = float(np.mean([each.standard_error for each in found]))
                    beyond = (drop - tolerance) / spread if spread else 0.0
                    rows.append(
                        {
                            "scenario": name, "n": n, "drop": drop, "tolerance": tolerance,
                            "failed": float(np.mean([each.p_value <= LEVEL for each in found])),
                            "standard_error": spread,
                            "normal": NormalDist().cdf(beyond - NormalDist().inv_cdf(1 - LEVEL)),
                        }
                    )  # fmt: skip
    return rows


def together(*, checks: int, repetitions: int, seed: int = 0) -> list[dict[str, Any]]:
    """The same for builds of several checks, where nothing is worse."""
    generator, rows = np.random.default_rng(seed), []
    for name, scenario in SCENARIOS.items():
        for n in SIZES:
            failed = [
                bool(
                    holm(
                        {k: paired_change(*scenario(generator, n, 0.0)).p_value for k in range(checks)}, LEVEL
                    )
                )
                for _ in range(repetitions)
            ]
            rows.append({"scenario": name, "n": n, "checks": checks, "failed": float(np.mean(failed))})
    return rows


def main() -> None:
    """Simulate, and record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repetitions", type=int, default=4000)
    parser.add_argument("--record", type=Path)
    options = parser.parse_args()
    recorded = {
        "level": LEVEL,
        "accuracy": ACCURACY,
        "repetitions": options.repetitions,
        "largest_error": math.sqrt(0.25 / options.repetitions),
        "rows": simulate(repetitions=options.repetitions),
        "together": together(checks=5, repetitions=options.repetitions),
    }
    for row in (*recorded["rows"], *recorded["together"]):
        print(row)
    if options.record:
        options.record.write_text(json.dumps(recorded, indent=1) + "\n")


if __name__ == "__main__":
    main()
