import pytest

from vqshield.training.trainer import END, START, WARMUP, one_cycle


def test_known_points():
    rates = [one_cycle(step, steps=101, peak=0.4) for step in range(101)]
    assert rates[0] == pytest.approx(0.4 * START)
    assert rates[round(100 * WARMUP)] == max(rates) == pytest.approx(0.4)
    assert rates[-1] == pytest.approx(0.4 * END)


@pytest.mark.parametrize("steps", [1, 2, 3, 10, 97])
def test_rises_then_falls_within_bounds(steps):
    rates = [one_cycle(step, steps=steps, peak=2.0) for step in range(steps)]
    top = rates.index(max(rates))
    assert rates[: top + 1] == sorted(rates[: top + 1])
    assert rates[top:] == sorted(rates[top:], reverse=True)
    assert all(0 < rate <= 2.0 for rate in rates)
