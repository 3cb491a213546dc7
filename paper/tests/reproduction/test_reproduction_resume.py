"""A run that is stopped or killed, whenever, continues and ends in the records of an unbroken one."""

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from small_experiments import CURVES, PART, planned, records, small

from vqshield.evaluation.study import Evaluation
from vqshield_paper.reproduction.runner import Reproduction, summarise_folder

TWO = small(PART.replace("{ pgd =", '{ eot = "pgd:steps=3,eot=2", pgd ='), CURVES.replace('"few"', '"more"'))
OPTIONS = {"limit": 3}
DRIVER = """
import os, signal, sys
from pathlib import Path
from small_experiments import planned
from test_reproduction_resume import OPTIONS, TWO

def run(out, left):
    def watch(doing, done, total):
        nonlocal left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
    planned(TWO, Path(out), **OPTIONS).run(watch)

whole, *rounds = sys.argv[1:]
run(whole, -1)  # in this process: what it imports on the way, the others have
for round in rounds:
    out, after = round.rsplit(":", 1)
    child = os.fork()
    if child == 0:
        run(out, int(after))
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
"""A whole run in FOLDER, then FOLDER:REPORTS each in a fork of this process, which has imported torch."""


def stopped(plan: Reproduction, *, after: int) -> None:
    """Run until Ctrl-C at that report of progress, which may be in the middle of a cell."""
    left = after

    def watch(_: str, __: int, ___: int) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        plan.run(watch)


def count(found: dict[str, bytes]) -> int:
    return sum(content.count(b"\n") for content in found.values())


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """As in the processes that are killed: another number of threads has other last bits."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, bytes], int]:
    """The records of a run that nothing stops, and how often it reports."""
    out, reports = tmp_path_factory.mktemp("unbroken"), []
    planned(TWO, out, **OPTIONS).run(lambda *_: reports.append(1))
    return records(out), len(reports)


@pytest.mark.parametrize("share", [0.0, 0.3, 0.6, 0.95])
def test_a_stopped_run_goes_on(unbroken: tuple[dict[str, bytes], int], tmp_path: Path, share: float) -> None:
    expected, reports = unbroken
    stopped(planned(TWO, tmp_path, **OPTIONS), after=1 + int(share * reports))
    some = records(tmp_path)
    assert some != expected
    assert all(expected[name].startswith(content) for name, content in some.items())
    summary = json.loads((tmp_path / "T2" / "summary.json").read_text())
    assert summary["complete"] is False
    assert summary["parts"][-1]["status"] != "complete"
    planned(TWO, tmp_path, **OPTIONS).run()
    assert records(tmp_path) == expected
    assert summarise_folder(tmp_path / "T2").complete is True


def test_what_is_finished_is_not_measured_again(
    unbroken: tuple[dict[str, bytes], int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, reports = unbroken
    stopped(planned(TWO, tmp_path, **OPTIONS), after=reports // 2)
    done = count(records(tmp_path))
    measured, whole = [], Evaluation.measure
    monkeypatch.setattr(
        Evaluation, "measure", lambda self, cell, *told: measured.append(cell) or whole(self, cell, *told)
    )
    planned(TWO, tmp_path, **OPTIONS).run()
    assert 0 < done < count(expected)
    assert sum(len(cell.keys) for cell in measured) == count(expected) - done


def test_half_a_line_is_made_whole(unbroken: tuple[dict[str, bytes], int], tmp_path: Path) -> None:
    """As after a machine that went down."""
    expected, reports = unbroken
    stopped(planned(TWO, tmp_path, **OPTIONS), after=reports // 2)
    path = max(tmp_path.rglob("records.jsonl"), key=lambda path: path.stat().st_size)
    path.write_bytes(path.read_bytes()[:-20])
    planned(TWO, tmp_path, **OPTIONS).run()
    assert records(tmp_path) == expected


@pytest.mark.slow
def test_killed_at_five_moments_it_ends_in_the_same_bytes(
    unbroken: tuple[dict[str, bytes], int], tmp_path: Path
) -> None:
    """kill -9, at reports of progress that chance chooses, most of them in the middle of a cell."""
    expected, reports = unbroken
    found = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": found}
    chance = random.Random(6)
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    kills = [f"{killed}:{chance.randint(1, reports // 5)}" for _ in range(5)]
    command = [sys.executable, "-c", DRIVER, str(whole), *kills]
    done = subprocess.run(command, env=environment, check=True, timeout=300, stdout=subprocess.PIPE)
    assert [int(line) for line in done.stdout.split()] == [-signal.SIGKILL] * 5
    assert records(whole) == expected
    some = records(killed)
    assert all(expected[name].startswith(content) for name, content in some.items())
    assert some != expected
    planned(TWO, killed, **OPTIONS).run()
    assert records(killed) == expected
    assert summarise_folder(killed / "T2").complete is True
