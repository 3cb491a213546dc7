"""Ray when something dies or is not there: a node, the process that asks, the cluster."""

import os
import signal
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path

import pytest
from ray_studies import (
    CELLS_A_CHUNK,
    IMAGES,
    ONE_CHUNK,
    OPTIONS,
    STUDY,
    Trapped,
    asked,
    by_value,
    defended,
    here,
    one_thread,
    run,
)

from vqshield.core.errors import InvalidInputError
from vqshield.runs.executors import LocalExecutor
from vqshield.runs.executors.ray import RayExecutor

ray = pytest.importorskip("ray")
pytestmark = pytest.mark.slow
__all__ = ["by_value", "here", "one_thread"]  # fixtures


@pytest.mark.parametrize(("address", "why"), [("127.0.0.1:1", "refused"), ("nonsense", "format")])
def test_an_address_where_nobody_answers_is_named(tmp_path: Path, address: str, why: str) -> None:
    with pytest.raises(InvalidInputError, match=f"answers at address='{address}': .*{why}"):
        run(STUDY, tmp_path, RayExecutor(address=address))
    assert not ray.is_initialized()


def test_a_node_that_dies_takes_no_record_with_it(
    here: Path, tmp_path: Path, by_value: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run begins on a node that is killed when the first chunk has arrived, within the second one."""
    from ray.cluster_utils import Cluster

    begun, never, free = (tmp_path / name for name in ("begun", "never", "free"))
    os.mkfifo(begun)
    os.mkfifo(never)

    def wait_for_the_end() -> None:
        if not free.exists():
            begun.write_text("here")  # returns when the killer reads it
            never.read_text()

    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    size = {"num_cpus": 1, "object_store_memory": OPTIONS["object_store_memory"]}
    # A node that is silent for a second is dead; Ray itself waits for twenty.
    health = {"initial_delay_ms": 0, "period_ms": 200, "timeout_ms": 1000, "failure_threshold": 5}
    config = {f"health_check_{name}": value for name, value in health.items()}
    head = {**size, "num_cpus": 0, "include_dashboard": False, "_system_config": config}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    nodes = [cluster.add_node(**size)]
    cluster.wait_for_nodes()

    told: list[object] = []

    def kill(*said: object) -> None:
        told.append(said)
        if len(told) == CELLS_A_CHUNK:
            begun.read_text()
            cluster.remove_node(nodes[0], allow_graceful=False)
            free.touch()
            nodes.append(cluster.add_node(**size))

    study = Trapped(**asked(STUDY), log=tmp_path / "log", trap=wait_for_the_end)
    try:
        run(study, tmp_path / "out", RayExecutor(address=cluster.address, ahead=3), kill)
        assert not ray.is_initialized(), "what it connected it leaves"
    finally:
        ray.shutdown()
        cluster.shutdown()
    assert (tmp_path / "log").read_text().split() == [node.node_id for node in nodes]
    assert (tmp_path / "out" / "records.jsonl").read_bytes() == (here / "records.jsonl").read_bytes()


def test_ctrl_c_ends_the_tasks_and_keeps_what_has_arrived(
    by_value: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One chunk, all of whose cells but the first hang; two of them run when Ctrl-C comes."""
    alive, never, records = (tmp_path / name for name in ("alive", "never", "out/records.jsonl"))
    os.mkfifo(alive)
    os.mkfifo(never)
    first_is_there, seen, lines = threading.Event(), list[tuple[object, ...]](), list[int]()

    def hang() -> None:
        with alive.open("w") as file:  # open for as long as the worker lives
            file.write("!")
            file.flush()
            never.read_text()

    def tell(*said: object) -> None:
        seen.append(said)
        first_is_there.set()

    def interrupt() -> None:
        with alive.open() as file:
            file.read(2)  # two workers, each in a cell of its own
            first_is_there.wait(timeout=60)
            lines.append(records.read_bytes().count(b"\n"))
            os.kill(os.getpid(), signal.SIGINT)
            file.read()

    monkeypatch.setattr(ray, "init", partial(ray.init, num_cpus=2, **OPTIONS))
    watcher = threading.Thread(target=interrupt, daemon=True)
    watcher.start()
    study = Trapped(**asked(ONE_CHUNK), log=tmp_path / "log", trap=hang, caught=defended)
    with pytest.raises(KeyboardInterrupt):
        run(study, tmp_path / "out", RayExecutor(address="local"), tell)
    assert not ray.is_initialized(), "what it connected it leaves"
    watcher.join(timeout=60)
    assert not watcher.is_alive(), "a worker still lives"
    assert len((tmp_path / "log").read_text().splitlines()) == 2, "tasks that run at the same time"
    assert lines == [IMAGES], "the images of the first cell, while later ones run"
    assert seen == [("none", IMAGES * ONE_CHUNK.runs, ONE_CHUNK.work)], "progress by cells"
    assert records.read_bytes().count(b"\n") == IMAGES, "kept"
    assert run(ONE_CHUNK, tmp_path / "out", LocalExecutor()) == run(
        ONE_CHUNK, tmp_path / "here", LocalExecutor()
    )


STUCK = """
import sys
from functools import partial
from pathlib import Path
import ray
import torch
from ray_studies import OPTIONS, STUDY, run
from vqshield.runs.executors.ray import RayExecutor

def stuck(*_):
    print("a record", flush=True)
    sys.stdin.read()  # for ever: it is killed here

torch.set_num_threads(1)
ray.init = partial(ray.init, num_cpus=1, **OPTIONS)
run(STUDY, Path(sys.argv[1]), RayExecutor(address="local"), stuck)
"""


def test_killed_in_the_middle_it_ends_in_the_same_bytes(here: Path, tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", STUCK, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])},
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"a record\n"
        os.kill(process.pid, signal.SIGKILL)
    assert (tmp_path / "records.jsonl").read_bytes().count(b"\n") == 1
    assert run(STUDY, tmp_path, LocalExecutor()) == (here / "records.jsonl").read_bytes()


GUARDED = """
import sys
from ray.cluster_utils import Cluster

size = {"num_cpus": 1, "object_store_memory": 100 * 2**20, "include_dashboard": False}
cluster = Cluster(initialize_head=True, head_node_args=size)
print(cluster.address, flush=True)
sys.stdin.read()
cluster.shutdown()
"""


def test_a_cluster_that_wants_a_token_says_so(tmp_path: Path) -> None:
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "a token of this test alone, 0123456789"}
    with subprocess.Popen(
        [sys.executable, "-c", GUARDED], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env=os.environ | token | {"RAY_USAGE_STATS_ENABLED": "0"},
    ) as process:  # fmt: skip
        assert process.stdout is not None
        address = next(line for line in process.stdout if ":" in line and " " not in line).strip()
        named = (
            f"address='{address}' refuses this process: .*token is missing or incorrect.*RAY_AUTH_MODE=token"
        )
        with pytest.raises(InvalidInputError, match=named):
            run(STUDY, tmp_path, RayExecutor(address=address))
    assert not ray.is_initialized()


def test_sigterm_means_what_it_meant_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray has a handler of its own, which ends the process at once."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(ray, "init", partial(ray.init, num_cpus=1, **OPTIONS))
    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            run(
                STUDY, tmp_path, RayExecutor(address="local"), lambda *_: os.kill(os.getpid(), signal.SIGTERM)
            )
    finally:
        signal.signal(signal.SIGTERM, before)
    assert not ray.is_initialized(), "what it connected it leaves"
    assert (tmp_path / "records.jsonl").read_bytes().count(b"\n") == 1, "kept"
