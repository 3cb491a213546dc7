"""A run that is stopped or killed, at whatever moment, goes on and ends in the records of an unbroken one."""

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from small_experiments import CURVES, PART, planned, records, small
from vqshield.reproduction.summary import summarise_folder

from vqshield.reproduction.runner import Reproduction
from vqshield.studies.evaluation import Evaluation

TWO = small(PART, CURVES.replace('"few"', '"more"'))
OPTIONS = {"limit": 4, "adaptive": "adaptive-v1-quick"}
DRIVER = """
import os, signal, sys
from pathlib import Path
from small_experiments import planned
from test_reproduction_resume import OPTIONS, TWO

plan, left = planned(TWO, Path(sys.argv[1]), **OPTIONS), int(sys.argv[2])

def watch(doing, done):
    global left
    left -= 1
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)

plan.watch(watch)
plan.run()
"""


def stopping(plan: Reproduction, after: int) -> None:
    """Ctrl-C at that report of progress, which may be in the middle of a cell."""
    left = after

    def watch(_: str, __: int) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            raise KeyboardInterrupt

    plan.watch(watch)


def count(found: dict[str, bytes]) -> int:
    return sum(content.count(b"\n") for content in found.values())


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, bytes], int]:
    """The records of a run that nothing stops, and how often it reports."""
    out, reports = tmp_path_factory.mktemp("unbroken"), []
    plan = planned(TWO, out, **OPTIONS)
    plan.watch(lambda *_: reports.append(1))
    plan.run()
    return records(out), len(reports)


@pytest.mark.parametrize("share", [0.0, 0.3, 0.6, 0.95])
def test_a_stopped_run_goes_on(unbroken: tuple[dict[str, bytes], int], tmp_path: Path, share: float) -> None:
    expected, reports = unbroken
    plan = planned(TWO, tmp_path, **OPTIONS)
    stopping(plan, 1 + int(share * reports))
    with pytest.raises(KeyboardInterrupt):
        plan.run()
    some = records(tmp_path)
    assert some != expected
    assert all(expected[name].startswith(content) for name, content in some.items())
    summary = json.loads((tmp_path / "T2" / "summary.json").read_text())
    assert summary["complete"] is False
    assert summary["parts"][-1]["status"] != "complete"
    planned(TWO, tmp_path, **OPTIONS).run()
    assert records(tmp_path) == expected
    assert summarise_folder(tmp_path / "T2")["complete"] is True


def test_what_is_finished_is_not_measured_again(
    unbroken: tuple[dict[str, bytes], int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, reports = unbroken
    plan = planned(TWO, tmp_path, **OPTIONS)
    stopping(plan, reports // 2)
    with pytest.raises(KeyboardInterrupt):
        plan.run()
    done = count(records(tmp_path))
    measured, whole = [], Evaluation.measure
    monkeypatch.setattr(Evaluation, "measure", lambda self, cell: measured.append(cell) or whole(self, cell))
    planned(TWO, tmp_path, **OPTIONS).run()
    assert 0 < done < count(expected)
    assert sum(len(cell.keys) for cell in measured) == count(expected) - done


def test_half_a_line_is_made_whole(unbroken: tuple[dict[str, bytes], int], tmp_path: Path) -> None:
    """As after a machine that went down."""
    expected, reports = unbroken
    plan = planned(TWO, tmp_path, **OPTIONS)
    stopping(plan, reports // 2)
    with pytest.raises(KeyboardInterrupt):
        plan.run()
    path = max(tmp_path.rglob("records.jsonl"), key=lambda path: path.stat().st_size)
    path.write_bytes(path.read_bytes()[:-20])
    planned(TWO, tmp_path, **OPTIONS).run()
    assert records(tmp_path) == expected


@pytest.mark.slow
def test_killed_at_five_moments_it_ends_in_the_same_bytes(
    unbroken: tuple[dict[str, bytes], int], tmp_path: Path
) -> None:
    """kill -9, at reports of progress that chance chooses, most of them in the middle of a cell."""
    _, reports = unbroken
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parent)}
    chance = random.Random(6)

    def run(out: Path, *, after: int) -> int:
        command = [sys.executable, "-c", DRIVER, str(out), str(after)]
        return subprocess.run(command, env=environment, check=False, timeout=300).returncode

    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert run(whole, after=-1) == 0  # not the one above: another number of threads has other last bits
    expected = records(whole)
    for _ in range(5):
        assert run(killed, after=chance.randint(1, reports // 5)) == -signal.SIGKILL
        assert all(expected[name].startswith(content) for name, content in records(killed).items())
    assert records(killed) != expected
    assert run(killed, after=-1) == 0
    assert records(killed) == expected
    assert summarise_folder(killed / "T2")["complete"] is True
