"""Processes of this machine: records as one process writes them, whatever becomes of workers."""

import json
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from ray_studies import (
    CELLS_A_CHUNK,
    IMAGES,
    STUDY,
    here,
    one_thread,
    run,
)
from square_studies import (
    THREADS,
    Death,
    Hanging,
    LongerElsewhere,
    Meeting,
    Raising,
    Squares,
    stubborn,
)

from vqshield.core.errors import InvalidInputError, VqshieldError
from vqshield.runs.executors import LocalExecutor
from vqshield.runs.executors.processes import ProcessesExecutor

pytestmark = pytest.mark.slow
__all__ = ["here", "one_thread"]  # fixtures
TWO = ProcessesExecutor(workers=2, cpus=THREADS)  # whatever squares it leaves, this process can measure
ONE = replace(TWO, workers=1)


@pytest.fixture(autouse=True)
def nobody_is_left() -> Iterator[None]:
    yield
    assert multiprocessing.active_children() == []


@pytest.mark.usefixtures("quick_workers")
def test_records_and_manifest_are_those_of_one_process(here: Path, tmp_path: Path) -> None:
    seen: list[int] = []
    found = run(STUDY, tmp_path / "out", ProcessesExecutor(workers=2), lambda _, done, __: seen.append(done))
    assert found == (here / "records.jsonl").read_bytes()
    manifests = [json.loads((folder / "manifest.json").read_text()) for folder in (here, tmp_path / "out")]
    assert manifests[0] == manifests[1]
    assert seen == sorted(set(seen))
    assert len(seen) == IMAGES * CELLS_A_CHUNK
    assert len((tmp_path / "out" / "times.jsonl").read_text().splitlines()) == IMAGES * CELLS_A_CHUNK


@pytest.mark.usefixtures("quick_workers")
def test_a_run_that_was_stopped_continues_with_another_executor(here: Path, tmp_path: Path) -> None:
    told = 0

    def stop(*_: object) -> None:
        nonlocal told
        told += 1
        if told == 10:  # within the second chunk, while later ones are being measured
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(STUDY, tmp_path, ProcessesExecutor(workers=2), stop)
    assert multiprocessing.active_children() == []
    assert (tmp_path / "records.jsonl").read_bytes().count(b"\n") == 10
    assert run(STUDY, tmp_path, LocalExecutor()) == (here / "records.jsonl").read_bytes()


@pytest.mark.usefixtures("quick_workers")
def test_cells_are_measured_at_once_and_given_back_in_order(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    study, told = Squares(log=tmp_path / "log", trap=Meeting(tmp_path / "pipe")), list[int]()
    assert study.run(tmp_path / "out", TWO, lambda _, done, __: told.append(done)) == [0, 1, 4, 9]
    assert told == [10, 20, 30, 40]
    assert Counter(study.begun()) == Counter(range(4)), "none twice"


@pytest.mark.usefixtures("quick_workers")
def test_no_more_workers_than_cells_are_left(tmp_path: Path) -> None:
    study, alive = Squares(log=tmp_path / "log", count=3), list[int]()

    def stop(_: str, done: int, __: int) -> None:
        if done == 20:
            raise KeyboardInterrupt

    def count(*_: object) -> None:
        alive.append(len(multiprocessing.active_children()))

    with pytest.raises(KeyboardInterrupt):
        study.run(tmp_path / "out", LocalExecutor(), stop)
    assert study.run(tmp_path / "out", replace(TWO, workers=8), count) == [0, 1, 4]
    assert alive == [1]
    assert study.begun() == [0, 1, 2], "none twice"


@pytest.mark.usefixtures("quick_workers")
def test_a_worker_that_is_killed_takes_no_record_with_it(tmp_path: Path) -> None:
    study = Squares(log=tmp_path / "log", trap=Death(tmp_path / "marker"), count=5)
    assert study.run(tmp_path / "out", replace(TWO, retries=1)) == [0, 1, 4, 9, 16]
    assert Counter(study.begun()) == {0: 1, 1: 1, 2: 2, 3: 1, 4: 1}


@pytest.mark.parametrize(("trap", "how"), [(Death(), "signal SIGKILL"), (Death(code=3), "exit code 3")])
@pytest.mark.usefixtures("quick_workers")
def test_a_worker_that_is_always_lost_ends_the_run(tmp_path: Path, trap: Death, how: str) -> None:
    study = Squares(log=tmp_path / "log", trap=trap)
    with pytest.raises(
        VqshieldError, match=f"number 2 was started 2 times, retries=1, .* by {how}; finished cells"
    ):
        study.run(tmp_path / "out", replace(ONE, retries=1))
    assert multiprocessing.active_children() == []
    assert study.begun() == [0, 1, 2, 2]
    assert len(Squares.values(tmp_path / "out")) == 2, "what was finished is kept"
    healed = Squares(log=tmp_path / "again")
    assert healed.run(tmp_path / "out", LocalExecutor()) == [0, 1, 4, 9]
    assert sorted(healed.begun()) == [2, 3]


@pytest.mark.usefixtures("quick_workers")
def test_an_error_ends_the_run_after_all_that_comes_before(tmp_path: Path) -> None:
    study = Squares(log=tmp_path / "log", trap=Raising(stubborn), count=99)
    with pytest.raises(RuntimeError) as raised:
        study.run(tmp_path / "out", TWO)
    assert str(raised.value) == "StubbornError: 1 and 2"
    assert "raise self.error()" in "".join(raised.value.__notes__)
    assert len(Squares.values(tmp_path / "out")) == 2, "those before it"
    assert study.begun().count(2) == 1, "errors are not tried again"


@pytest.mark.usefixtures("quick_workers")
def test_a_worker_that_finds_another_study_says_so(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="a worker found count=5 where the run started with count=4"):
        LongerElsewhere().run(tmp_path / "out", ONE)


@pytest.mark.usefixtures("quick_workers")
def test_a_study_that_cannot_be_pickled_leaves_nobody(tmp_path: Path) -> None:
    with pytest.raises(
        (AttributeError, TypeError, pickle.PicklingError), match=r"[Cc]an't pickle|cannot pickle"
    ):
        Squares(trap=lambda _: None).run(tmp_path / "out", ONE)


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


@pytest.mark.usefixtures("quick_workers")
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
        Squares(trap=Hanging(alive, never)).run(tmp_path / "out", TWO, lambda *_: first_is_there.set())
    assert multiprocessing.active_children() == []
    watcher.join(timeout=60)
    assert not watcher.is_alive(), "a worker still lives"
    assert len(Squares.values(tmp_path / "out")) == 1
    assert Squares().run(tmp_path / "out", LocalExecutor()) == [0, 1, 4, 9]


HANGING = """
import sys
from pathlib import Path
from square_studies import THREADS, Hanging, Squares
from vqshield.runs.executors.processes import ProcessesExecutor

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    study = Squares(trap=Hanging(folder / "alive", folder / "never"))
    by = ProcessesExecutor(workers=2, cpus=THREADS)
    study.run(folder / "out", by, lambda *_: print("a record", flush=True))
"""


def script(folder: Path, text: str) -> subprocess.Popen[bytes]:
    path = folder / "script.py"
    path.write_text(text)
    return subprocess.Popen(
        [sys.executable, str(path), str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])},
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
    assert Squares().run(tmp_path / "out", LocalExecutor()) == [0, 1, 4, 9]


def test_a_script_that_runs_at_import_is_told_how_to_be_written(tmp_path: Path) -> None:
    unguarded = HANGING.replace('if __name__ == "__main__":', "if True:").replace("workers=2", "workers=1")
    with script(tmp_path, unguarded) as process:
        _, said = process.communicate(timeout=120)
    last = said.decode().strip().splitlines()[-1]
    assert "a worker ended by exit code 1 before it started" in last
    assert "below if __name__ == '__main__':" in last
