"""Processes of this machine: records as one process writes them, whatever becomes of workers."""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from ray_jobs import JOB, Counted, here, one_thread, run, run_trapped
from square_jobs import (
    Death,
    Hanging,
    Meeting,
    Parities,
    Raising,
    Squares,
    SquaresRecipe,
    full_disk,
    full_gpu,
    mistake,
    no_file,
    refusal,
    stubborn,
)

from vqshield.errors import InvalidInputError, VqshieldError
from vqshield.runs.executors import LocalExecutor, ProcessesExecutor, processes

pytestmark = pytest.mark.slow
__all__ = ["here", "one_thread"]  # fixtures
TWO = ProcessesExecutor(workers=2)


@pytest.fixture(autouse=True)
def nobody_is_left() -> Iterator[None]:
    yield
    assert multiprocessing.active_children() == []


def test_records_and_manifest_are_those_of_one_process(here: Path, tmp_path: Path) -> None:
    seen: list[int] = []
    found = run(JOB, tmp_path, TWO, lambda _, done: seen.append(done))
    assert found == (here / "records.jsonl").read_bytes()
    manifests = [json.loads((folder / "manifest.json").read_text()) for folder in (here, tmp_path)]
    assert manifests[0] == manifests[1]
    assert seen == sorted(set(seen))
    assert len(seen) == 8 * 7, "cells"
    assert len((tmp_path / "times.jsonl").read_text().splitlines()) == 8 * 7


def test_an_attack_that_ignores_the_defense_is_made_once(here: Path, tmp_path: Path) -> None:
    job = replace(JOB, shared=tmp_path / "shared")
    os.mkfifo(tmp_path / "pipe")
    run_trapped(Counted(tmp_path / "log", tmp_path / "pipe", job), tmp_path / "out", TWO)
    made = Counter((tmp_path / "log").read_text().splitlines())
    ignorant = [f"none pgd:steps=2,surrogate=none {start}" for start in range(8)]
    aware = [f"{name} pgd:steps=2 {start}" for name in JOB.settings.defenses for start in range(8)]
    assert made == Counter([*ignorant, *aware])
    assert (tmp_path / "out" / "records.jsonl").read_bytes() == (here / "records.jsonl").read_bytes()


def test_a_run_that_was_stopped_goes_on_with_another_executor(here: Path, tmp_path: Path) -> None:
    reports = 0

    def stop(*_: object) -> None:
        nonlocal reports
        reports += 1
        if reports == 10:  # within the second chunk, while later ones are being measured
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(JOB, tmp_path, TWO, stop)
    assert multiprocessing.active_children() == []
    assert (tmp_path / "records.jsonl").read_bytes().count(b"\n") == 10
    assert run(JOB, tmp_path, LocalExecutor()) == (here / "records.jsonl").read_bytes()


def test_cells_are_measured_at_once_and_given_back_in_order(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    recipe, reports = SquaresRecipe(tmp_path / "log", Meeting(tmp_path / "pipe")), list[int]()
    assert recipe.run(tmp_path / "out", TWO, lambda _, done: reports.append(done)) == [0, 1, 4, 9]
    assert reports == [10, 20, 30, 40]
    assert Counter(recipe.begun()) == Counter(range(4)), "none twice"


def test_no_more_workers_than_cells_are_left(tmp_path: Path) -> None:
    recipe, alive = SquaresRecipe(tmp_path / "log", count=3), list[int]()

    def stop(_: str, done: int) -> None:
        if done == 20:
            raise KeyboardInterrupt

    def count(*_: object) -> None:
        alive.append(len(multiprocessing.active_children()))

    with pytest.raises(KeyboardInterrupt):
        recipe.run(tmp_path / "out", LocalExecutor(), stop)
    threads = Squares(tmp_path).specification["machine"]["threads"]
    assert recipe.run(tmp_path / "out", ProcessesExecutor(workers=8, cpus=threads), count) == [0, 1, 4]
    assert alive == [1]
    assert recipe.begun() == [0, 1, 2], "none twice"


@pytest.mark.parametrize(
    ("given", "size"), [({}, 7), ({"cpus": 2}, 3), ({"cpus": 9}, 1), ({"workers": 5}, 5)]
)
def test_as_many_workers_as_there_are_cpus_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: dict[str, int], size: int
) -> None:
    class EnoughError(Exception):
        pass

    def team(*_: object, size: int, threads: int) -> None:
        raise EnoughError(size, threads)

    monkeypatch.setattr(processes, "Team", team)
    monkeypatch.setattr(processes, "_cpus", lambda: 7)
    with pytest.raises(EnoughError) as found:
        SquaresRecipe(tmp_path / "log").run(tmp_path, ProcessesExecutor(**given))
    assert found.value.args == (size, given.get("cpus", 1))


def test_a_worker_that_is_killed_takes_no_record_with_it(tmp_path: Path) -> None:
    recipe = SquaresRecipe(tmp_path / "log", Death(tmp_path / "marker"), count=5, kind=Parities)
    assert recipe.run(tmp_path / "out", ProcessesExecutor(workers=2, retries=1)) == [0, 1, 4, 9, 16]
    assert Counter(recipe.begun()) == {0: 1, 1: 1, 2: 2, 3: 1, 4: 1}
    assert recipe.begun().index(4) > recipe.begun().index(2, recipe.begun().index(2) + 1), "its finder first"


@pytest.mark.parametrize(
    ("trap", "how"),
    [(Death(), "signal SIGKILL"), (Death(code=3), "exit code 3")],
)
def test_a_worker_that_is_always_lost_ends_the_run(tmp_path: Path, trap: Death, how: str) -> None:
    recipe = SquaresRecipe(tmp_path / "log", trap)
    with pytest.raises(
        VqshieldError, match=f"number 2 was begun 2 times, retries=1, .* by {how}; what is fin"
    ):
        recipe.run(tmp_path / "out", ProcessesExecutor(workers=1, retries=1))
    assert multiprocessing.active_children() == []
    assert recipe.begun() == [0, 1, 2, 2]
    assert len(Squares(tmp_path / "out").records.read()) == 2, "what was finished is kept"
    healed = SquaresRecipe(tmp_path / "again")
    assert healed.run(tmp_path / "out", TWO) == [0, 1, 4, 9]
    assert sorted(healed.begun()) == [2, 3]


@pytest.mark.parametrize(
    ("error", "expected", "message"),
    [
        (mistake, RuntimeError, "ZeroDivisionError: a mistake of the program"),
        (stubborn, RuntimeError, "StubbornError: 1 and 2"),
        (full_disk, OSError, "[Errno 28] No space left on device"),
        (no_file, FileNotFoundError, "[Errno 2] No such file or directory: 'weights'"),
        (refusal, InvalidInputError, "colour=3 should be blue"),
    ],
)
def test_an_error_arrives_as_it_was_after_all_that_comes_before(
    tmp_path: Path, error: Callable[[], Exception], expected: type[Exception], message: str
) -> None:
    recipe = SquaresRecipe(tmp_path / "log", Raising(error), count=99)
    with pytest.raises(expected) as raised:
        recipe.run(tmp_path / "out", TWO)
    assert (type(raised.value), str(raised.value)) == (expected, message)
    assert len(Squares(tmp_path / "out", count=99).records.read()) == 2, "those before it"
    assert recipe.begun().count(2) == 1, "errors are not tried again"
    notes = "".join(getattr(raised.value, "__notes__", []))
    assert ("raise self.error()" in notes) == (error is not refusal), "where a mistake was made"


def test_a_gpu_that_is_full_is_no_mistake_of_the_program(tmp_path: Path) -> None:
    recipe = SquaresRecipe(tmp_path / "log", Raising(full_gpu))
    with pytest.raises(VqshieldError, match=r"too little memory for so many workers: CUDA out of.*fewer"):
        recipe.run(tmp_path / "out", TWO)
    assert len(Squares(tmp_path / "out").records.read()) == 2


@dataclass(frozen=True)
class Longer(SquaresRecipe):
    """Gives other work than was begun."""

    def rebuild(self, folder: Path) -> Squares:
        return Squares(folder, count=self.count + 1)


def test_a_worker_that_finds_other_work_says_so(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="a worker found count=5 where the run began with count=4"):
        Longer(tmp_path / "log").run(tmp_path / "out", TWO)


def test_a_recipe_that_cannot_travel_leaves_nobody(tmp_path: Path) -> None:
    with pytest.raises((AttributeError, TypeError), match=r"[Cc]an't pickle|cannot pickle"):
        SquaresRecipe(tmp_path / "log", lambda _: None).run(tmp_path / "out", TWO)


def ends(pipe: Path, first: Callable[[], None]) -> threading.Thread:
    """A thread that does something when a worker hangs, and ends when all of them have ended."""

    def watch() -> None:
        with pipe.open() as file:
            file.read(1)
            first()
            file.read()

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    return thread


def test_ctrl_c_ends_the_workers_at_once(tmp_path: Path) -> None:
    alive, never = tmp_path / "alive", tmp_path / "never"
    os.mkfifo(alive)
    os.mkfifo(never)
    first_is_there = threading.Event()

    def interrupt() -> None:
        first_is_there.wait(timeout=60)
        os.kill(os.getpid(), signal.SIGINT)

    watcher = ends(alive, interrupt)
    with pytest.raises(KeyboardInterrupt):
        SquaresRecipe(tmp_path / "log", Hanging(alive, never)).run(
            tmp_path / "out", TWO, lambda *_: first_is_there.set()
        )
    assert multiprocessing.active_children() == []
    watcher.join(timeout=60)
    assert not watcher.is_alive(), "a worker still lives"
    assert len(Squares(tmp_path / "out").records.read()) == 1
    assert SquaresRecipe(tmp_path / "log").run(tmp_path / "out", TWO) == [0, 1, 4, 9]


HANGING = """
import sys
from pathlib import Path
from square_jobs import Hanging, SquaresRecipe
from vqshield.runs.executors import ProcessesExecutor

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    recipe = SquaresRecipe(folder / "log", Hanging(folder / "alive", folder / "never"))
    recipe.run(folder / "out", ProcessesExecutor(workers=2), lambda *_: print("a record", flush=True))
"""


def script(folder: Path, text: str) -> subprocess.Popen[bytes]:
    path = folder / "script.py"
    path.write_text(text)
    return subprocess.Popen(
        [sys.executable, str(path), str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parent)},
        start_new_session=True,
    )


@pytest.mark.parametrize("everybody", [False, True])
def test_workers_end_with_the_process_that_asks(tmp_path: Path, everybody: bool) -> None:
    """It is killed; or Ctrl-C in a terminal reaches it and its workers alike, and only it answers."""
    os.mkfifo(tmp_path / "alive")
    os.mkfifo(tmp_path / "never")
    with script(tmp_path, HANGING) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"a record\n"

        def end() -> None:
            if everybody:
                os.killpg(process.pid, signal.SIGINT)
            else:
                os.kill(process.pid, signal.SIGKILL)

        watcher = ends(tmp_path / "alive", end)
        watcher.join(timeout=60)
        assert not watcher.is_alive(), "a worker still lives"
        _, said = process.communicate(timeout=60)
    assert said.count(b"Traceback") == (1 if everybody else 0)
    assert SquaresRecipe(tmp_path / "log").run(tmp_path / "out", TWO) == [0, 1, 4, 9]


def test_a_script_that_runs_at_import_is_told_how_to_be_written(tmp_path: Path) -> None:
    unguarded = HANGING.replace('if __name__ == "__main__":', "if True:")
    with script(tmp_path, unguarded) as process:
        _, said = process.communicate(timeout=120)
    last = said.decode().strip().splitlines()[-1]
    assert "a worker ended by exit code 1 before it began" in last
    assert "below if __name__ == '__main__':" in last
