import pytest

from vqshield.core.errors import InvalidInputError
from vqshield.training.schedule import END, START, WARMUP, cosine, one_cycle, stepwise


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


@pytest.mark.parametrize("step", [-1, 10])
def test_a_step_outside_the_run_is_named(step):
    with pytest.raises(InvalidInputError, match=f"step={step}"):
        one_cycle(step, steps=10, peak=1.0)
    with pytest.raises(InvalidInputError, match=f"step={step}"):
        cosine(step, steps=10, peak=1.0)
    with pytest.raises(InvalidInputError, match=f"step={step}"):
        stepwise(step, steps=10, peak=1.0, milestones=(), drop=0.1)


def test_a_cosine_goes_from_the_peak_through_its_half_towards_nothing():
    rates = [cosine(step, steps=200, peak=0.1) for step in range(200)]
    assert rates[0] == 0.1
    assert rates[100] == pytest.approx(0.05)
    assert rates == sorted(rates, reverse=True)
    assert 0 < rates[-1] < 1e-5


def test_steps_drop_the_rate_at_each_milestone():
    rates = [stepwise(step, steps=200, peak=0.1, milestones=(60, 120, 160), drop=0.2) for step in range(200)]
    assert (rates[0], rates[59]) == (0.1, 0.1)
    assert rates[60] == rates[119] == pytest.approx(0.02)
    assert rates[120] == pytest.approx(0.004)
    assert rates[160] == rates[199] == pytest.approx(0.0008)
