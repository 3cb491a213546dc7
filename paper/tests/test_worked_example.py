"""The worked example: the paper's numbers, what they prove, and what no number can be."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vqshield.core.errors import InvalidInputError
from vqshield.runs.executors import LocalExecutor
from vqshield_paper.worked_example import Numbers, WorkedExample, WorkedExampleCell, WorkedExampleRecord


def run(folder: Path, numbers: Numbers | None = None) -> list[WorkedExampleRecord]:
    LocalExecutor().run(WorkedExample(numbers=numbers or Numbers()), folder)
    return list(WorkedExample.read(folder).records)


def record_of(numbers: Numbers) -> WorkedExampleRecord:
    (record,) = WorkedExample(numbers=numbers).measure(WorkedExampleCell())
    return record


def test_the_paper_s_numbers_give_these_bounds(tmp_path: Path) -> None:
    (record,) = run(tmp_path)
    assert (record.draws, record.mean_l1, record.margin) == (100, 0.2, 0.9)
    assert record.deltas == (0.05, 0.005)
    assert record.proposition1 == pytest.approx((0.494, 0.584), abs=5e-4)
    assert record.published == (0.40, 0.45)
    expected = [0.2 / 0.9 + math.sqrt(math.log(1 / delta) / 200) for delta in record.deltas]
    assert record.truncated_markov == pytest.approx(expected)
    for bounds in zip(record.clopper_pearson, record.truncated_markov, record.proposition1, strict=True):
        assert list(bounds) == sorted(set(bounds))
    assert WorkedExampleRecord.parse(record.line()) == record


def test_errors_that_are_not_given_are_the_most_there_can_be() -> None:
    record = record_of(Numbers())
    assert (record.errors, record.errors_given) == (22, False)  # 23 of them would take 20.7 in sum, not 20
    for delta, bound in zip(record.deltas, record.clopper_pearson, strict=True):
        tail = sum(math.comb(100, e) * bound**e * (1 - bound) ** (100 - e) for e in range(23))
        assert tail == pytest.approx(delta)
    fewer = record_of(Numbers(errors=3))
    assert (fewer.errors, fewer.errors_given) == (3, True)
    assert all(few < many for few, many in zip(fewer.clopper_pearson, record.clopper_pearson, strict=True))
    assert Numbers(mean_l1=0.3, margin=0.1, draws=10).most_errors == 10
    assert Numbers(mean_l1=0.3, margin=0.6, draws=10).most_errors == 5


@given(
    st.integers(1, 2000), st.floats(0, 2), st.floats(-1, 1), st.floats(1e-6, 0.9)
)  # whatever the numbers are
def test_the_bounds_keep_their_order(draws: int, mean_l1: float, margin: float, delta: float) -> None:
    record = record_of(Numbers(draws=draws, mean_l1=mean_l1, margin=margin, deltas=(delta,), published=()))
    (paper,), (markov,), (exact,) = record.proposition1, record.truncated_markov, record.clopper_pearson
    assert 0 <= exact <= markov + 1e-9
    assert markov <= paper + 1e-9 <= 1 + 1e-9
    if margin <= 0:
        assert (paper, exact) == (1, 1)


def test_stopped_before_the_end_it_ends_in_the_same_bytes(tmp_path: Path) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    run(tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        LocalExecutor().run(WorkedExample(), tmp_path / "stopped", progress=stop)
    half = tmp_path / "stopped" / "records.jsonl"
    half.write_bytes((tmp_path / "whole" / "records.jsonl").read_bytes()[:40])
    assert WorkedExample.read(tmp_path / "stopped").records == []
    for _ in range(2):
        run(tmp_path / "stopped")
    for name in ("records.jsonl", "manifest.json"):
        assert (tmp_path / "stopped" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_other_numbers_do_not_mix_with_the_records(tmp_path: Path) -> None:
    run(tmp_path)
    with pytest.raises(InvalidInputError, match=r"example.margin=0.9, this run has example.margin=0.8"):
        run(tmp_path, Numbers(margin=0.8))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"draws": 0}, "draws=0 should be >= 1"),
        ({"mean_l1": -0.1}, "mean_l1=-0.1"),
        ({"mean_l1": 2.5}, "mean_l1=2.5"),
        ({"margin": 1.5}, "margin=1.5"),
        ({"deltas": ()}, "deltas holds no number"),
        ({"deltas": (0.05, 1.0)}, "delta=1.0 should lie strictly between 0 and 1"),
        ({"published": (0.4,)}, r"published=\(0.4,\) should be empty or hold 2 numbers"),
        ({"published": (0.4, 1.4)}, "published=1.4 should be from 0 to 1"),
        ({"errors": 23}, "errors=23 should be from 0 to 22"),
        ({"errors": -1}, "errors=-1 should be from 0 to 22"),
    ],
)
def test_numbers_that_cannot_be_are_named(change: dict, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        replace(Numbers(), **change)
