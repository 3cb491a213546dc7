"""The loop that every run goes through, wherever cells are measured; and executors by name."""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from square_studies import MACHINE, THREADS, Squares
from torch import nn

from vqshield.certification.study import Certification
from vqshield.core.errors import InvalidInputError, MissingExtraError
from vqshield.core.serialization import to_plain
from vqshield.data import sample
from vqshield.evaluation.study import Evaluation
from vqshield.runs.executors import Executor, LocalExecutor, executor, list_executors
from vqshield.runs.executors.pool import PoolExecutor, Request
from vqshield.runs.executors.processes import ProcessesExecutor
from vqshield.runs.executors.ray import Cluster, RayExecutor
from vqshield.runs.study import Study, measure, no_progress
from vqshield.runs.target import Target

TWO = ProcessesExecutor(workers=2)


@pytest.mark.parametrize("by", [LocalExecutor(), pytest.param(TWO, marks=pytest.mark.slow)])
@pytest.mark.usefixtures("quick_workers")
def test_cells_are_measured_in_order_and_told(tmp_path: Path, by: Executor) -> None:
    told: list[tuple[str, int, int]] = []
    values = Squares(count=7).run(tmp_path / "out", by, lambda *said: told.append(said))
    assert values == [number**2 for number in range(7)]
    assert told == [(f"number {number}", 10 * number + 10, 70) for number in range(7)]
    assert len((tmp_path / "out" / "times.jsonl").read_text().splitlines()) == 7


@pytest.mark.parametrize("by", [LocalExecutor(), pytest.param(TWO, marks=pytest.mark.slow)])
@pytest.mark.usefixtures("quick_workers")
def test_a_stopped_run_continues_where_it_was(tmp_path: Path, by: Executor) -> None:
    def stop(_: str, done: int, __: int) -> None:
        if done == 20:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Squares(log=tmp_path / "log").run(tmp_path / "out", by, stop)
    assert len(Squares.values(tmp_path / "out")) == 2
    again, told = Squares(log=tmp_path / "again"), list[int]()
    assert again.run(tmp_path / "out", by, lambda _, done, __: told.append(done)) == [0, 1, 4, 9]
    assert (told, sorted(again.begun())) == ([30, 40], [2, 3]), "nothing is measured twice"
    finished = Squares(log=tmp_path / "never")
    finished.run(tmp_path / "out", by, lambda *_: pytest.fail("nothing is left to tell"))
    assert finished.begun() == []


def test_what_is_measured_is_timed() -> None:
    study = Squares()
    found = measure(study, study.cells[3])
    assert found.records[0].value == 9
    assert found.seconds >= 0


class SlowPool:
    """At each wait one cell is finished, the one that `choose` takes of those that run."""

    def __init__(self, size: int, choose: Callable[[list[int]], int]) -> None:
        self.size, self.choose = size, choose
        self.started, self.running, self.finished = list[int](), list[int](), list[int]()
        self.most = 0

    def start(self, number: int) -> None:
        self.started.append(number)
        self.running.append(number)
        self.most = max(self.most, len(self.running))

    def wait(self) -> dict[int, Any]:
        number = self.choose(self.running)
        self.running.remove(number)
        self.finished.append(number)
        study = Squares(count=number + 1)
        return {number: measure(study, study.cells[number])}


def measured_by(pool: SlowPool, study: Squares, first: int) -> Iterator[int]:
    """The numbers whose squares come back."""

    class Slow(PoolExecutor):
        def pool(self, request: Request) -> nullcontext[SlowPool]:
            return nullcontext(pool)

    for found in Slow().measured(study, first, no_progress):
        yield found.records[0].image


@pytest.mark.parametrize("choose", [min, max])
@pytest.mark.parametrize("size", [1, 2, 5])
def test_whichever_cell_ends_first_the_order_is_that_of_the_cells(
    choose: Callable[[list[int]], int], size: int
) -> None:
    study, pool = Squares(count=100), SlowPool(size, choose)
    assert list(measured_by(pool, study, 1)) == list(range(1, 100))
    assert sorted(pool.started) == sorted(pool.finished) == list(range(1, 100)), "each once"
    assert pool.most == size


def test_a_long_cell_stops_the_others_only_when_many_are_held() -> None:
    pool = SlowPool(2, max)
    assert next(measured_by(pool, Squares(count=100), 0)) == 0
    assert len(pool.started) == 16 * 2
    assert pool.finished == [*range(1, 32), 0]


def test_a_cluster_that_grows_measures_more_at_once() -> None:
    class Nodes:
        many = 1

        def nodes(self) -> list[dict[str, Any]]:
            there = {"Alive": True, "Resources": {"CPU": 1}}
            return [there] * self.many + [{"Alive": False, "Resources": {"CPU": 9}}]

    nodes = Nodes()
    cluster = Cluster(nodes, RayExecutor())
    assert cluster.size == 2, "two tasks for each CPU"
    nodes.many = 3
    assert cluster.size == 6
    assert Cluster(nodes, RayExecutor(cpus=2)).size == 2, "one where none fits now"
    assert Cluster(nodes, RayExecutor(ahead=5)).size == 5


def test_executors_by_name() -> None:
    assert list_executors() == ["local", "processes", "ray"]
    assert executor("local") == LocalExecutor()
    assert executor("processes", workers=3, retries=0) == ProcessesExecutor(workers=3, retries=0)
    assert executor("ray", retries=1, cpus=2) == RayExecutor(retries=1, cpus=2)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("slurm", {}, "executor='slurm' is unknown; choose one of local, processes, ray"),
        ("local", {"cpus": 2}, "local has no setting 'cpus'; it has none at all"),
        ("processes", {"gpus": 1}, "processes has no setting 'gpus'; it has workers, cpus, retries"),
        ("processes", {"workers": 0}, "workers=0 should be >= 1"),
        ("processes", {"workers": 1.5}, "workers=1.5 should be"),
        ("processes", {"cpus": 0}, "cpus=0 should be >= 1"),
        ("processes", {"retries": -1}, "retries=-1 should be >= 0"),
        ("ray", {"nodes": 2}, "ray has no setting 'nodes'; it has address, retries, cpus, gpus, ahead"),
        ("ray", {"retries": -1}, "retries=-1 should be >= 0"),
        ("ray", {"cpus": 0}, "cpus=0 should be >= 1"),
        ("ray", {"gpus": -1}, "gpus=-1 should be >= 0"),
        ("ray", {"ahead": 0}, "ahead=0 should be >= 1"),
    ],
)
def test_executors_that_cannot_work_are_named(name: str, options: dict, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        executor(name, **options)


def test_without_ray_its_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ModuleNotFoundError(name, name=name)

    monkeypatch.setattr("vqshield.core.entry_points.import_module", missing)
    with pytest.raises(MissingExtraError, match=r'pip install "\.\[cluster\]"'):
        RayExecutor().run(Squares(), tmp_path)


@pytest.mark.parametrize("by", [RayExecutor(), ProcessesExecutor()], ids=["ray", "processes"])
@pytest.mark.parametrize("kind", [Evaluation, Certification])
def test_a_classifier_in_memory_is_refused_where_others_should_load_it(
    tmp_path: Path, by: Executor, kind: type[Study[Any, Any, Any]]
) -> None:
    data = sample(2)
    target = Target.in_memory(nn.Sequential(nn.Flatten(), nn.LazyLinear(10)), data.floats(), data.labels)
    study = kind(target=target)
    with pytest.raises(
        InvalidInputError,
        match=f"{kind.__name__} has a classifier in memory.*module:function, or use the exec",
    ):
        by.run(study, tmp_path / "out")
    assert not (tmp_path / "out").exists(), "so that another executor can use the folder"


def test_the_manifest_names_the_threads_of_the_workers() -> None:
    there = {"count": 4, "machine": {**MACHINE, "threads": 3}}
    for by in (RayExecutor(cpus=3), ProcessesExecutor(cpus=3)):
        assert to_plain(by.manifest(Squares())) == there
    assert to_plain(LocalExecutor().manifest(Squares())) == {
        **there,
        "machine": {**MACHINE, "threads": THREADS},
    }
