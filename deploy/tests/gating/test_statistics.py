"""The gate's tests against brute force and simulated truth: noise fails no more builds than the level."""

import importlib.util
import itertools
import json
from math import comb
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from vqshield_deploy.gating.statistics import Shares, below, holm, paired_change, sign_flip

BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"
RECORDED = BENCHMARKS / "results" / "gate-power.json"


def gate_power() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gate_power", BENCHMARKS / "gate_power.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def one_sample(right: int, wrong: int) -> Shares:
    return Shares((1,) * right + (0,) * wrong, 1)


@pytest.mark.parametrize(("worse", "better"), [(0, 0), (1, 0), (5, 0), (9, 2), (3, 3), (0, 4), (30, 12)])
def test_with_one_sample_it_is_mcnemars_exact_test(worse: int, better: int) -> None:
    same = 100 - worse - better
    before = Shares((1,) * worse + (0,) * better + (1,) * same, 1)
    after = Shares((0,) * worse + (1,) * better + (1,) * same, 1)
    changed = worse + better
    exact = sum(comb(changed, count) for count in range(worse, changed + 1)) / 2**changed
    assert sign_flip(before.values - after.values, units=1) == pytest.approx(exact, abs=1e-12)
    found = paired_change(before, after)
    assert found.changed == changed
    assert found.change == pytest.approx((better - worse) / 100)
    assert found.p_value >= exact - 1e-12


def test_the_flips_of_shares_are_counted_exactly() -> None:
    drops = np.array([0.5, -0.25, 0.75, 0.25, 0.0, 1.0, -0.5, 0.25])
    sums = [abs(drops) @ signs for signs in itertools.product((-1, 1), repeat=len(drops))]
    expected = np.mean([total >= drops.sum() - 1e-9 for total in sums])
    assert sign_flip(drops, units=4) == pytest.approx(expected, abs=1e-12)


def test_runs_with_other_numbers_of_samples_are_compared_by_shares() -> None:
    before, after = Shares((4,) * 50, 4), Shares((10,) * 40 + (5,) * 10, 10)
    found = paired_change(before, after)
    assert (found.before, found.after, found.changed) == (1.0, pytest.approx(0.9), 10)
    assert found.p_value == pytest.approx(2**-10)


def test_without_a_changed_image_nothing_is_worse() -> None:
    shares = one_sample(60, 40)
    found = paired_change(shares, shares)
    assert (found.change, found.standard_error, found.changed, found.p_value) == (0, 0, 0, 1)
    assert str(found.change) == "0.0"  # not -0.0
    assert paired_change(shares, shares, tolerance=0.1).p_value == 1


def test_everything_lost_is_worse_although_there_is_no_spread() -> None:
    found = paired_change(one_sample(40, 0), one_sample(0, 40))
    assert found.standard_error == 0
    assert found.p_value == pytest.approx(2**-40, abs=1e-12)


def test_a_drop_within_the_tolerance_is_not_worse() -> None:
    before, after = one_sample(1000, 0), one_sample(970, 30)
    assert paired_change(before, after).p_value < 1e-6
    assert paired_change(before, after, tolerance=0.03).p_value == pytest.approx(0.5, abs=0.01)
    assert paired_change(before, after, tolerance=0.05).p_value > 0.99
    assert paired_change(before, after, tolerance=0.01).p_value < 1e-3


def test_a_threshold_is_missed_by_more_than_noise_or_not_at_all() -> None:
    assert below(one_sample(60, 40), 0.6) == pytest.approx(0.5)
    assert below(one_sample(55, 45), 0.6) > 0.05
    assert below(one_sample(51, 49), 0.6) < 0.05
    assert below(one_sample(0, 100), 0.0) == 1
    assert below(one_sample(100, 0), 1.0) == 1
    assert below(one_sample(99, 1), 1.0) == 0


@pytest.mark.parametrize("least", [0.05, 0.3, 0.6, 0.95])
def test_the_level_of_a_threshold_holds_up_to_rounding(least: float) -> None:
    """Exactly: the binomial chance of all counts that are refused."""
    n, level = 200, 0.05
    refused = [right for right in range(n + 1) if below(one_sample(right, n - right), least) <= level]
    chance = sum(comb(n, right) * least**right * (1 - least) ** (n - right) for right in refused)
    assert chance <= 1.15 * level


def test_holm_keeps_a_level_for_all_tests_together() -> None:
    assert holm({}, 0.05) == set()
    assert holm({0: 0.05}, 0.05) == {0}
    assert holm({0: 0.03, 1: 1.0}, 0.05) == set()
    generator = np.random.default_rng(0)
    uniform = generator.random((4000, 5))
    failed = np.mean([bool(holm(dict(enumerate(each)), 0.05)) for each in uniform])
    assert failed == pytest.approx(0.05, abs=0.012)


@pytest.mark.slow
def test_simulated_builds_fail_as_often_as_the_level_says() -> None:
    """No scenario fails more often than the level where nothing is worse; large drops are found."""
    rows = gate_power().simulate(repetitions=300, seed=1)
    for row in rows:
        margin = 3 * (0.05 * 0.95 / 300) ** 0.5
        if row["drop"] <= row["tolerance"]:
            assert row["failed"] <= 0.05 + margin, row
        if row["drop"] == 0.05 and row["n"] == 1000 and row["tolerance"] == 0:
            assert row["failed"] > 0.95, row


def test_the_recorded_simulation_keeps_the_level() -> None:
    recorded = json.loads(RECORDED.read_text())
    margin = 3 * (recorded["level"] * (1 - recorded["level"]) / recorded["repetitions"]) ** 0.5
    safe = [row["failed"] for row in recorded["rows"] if row["drop"] <= row["tolerance"]]
    assert len(safe) >= 6
    assert max(safe) <= recorded["level"] + margin
