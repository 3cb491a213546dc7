"""The loop that every run goes through, the work that is described by a job, and executors by name."""

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from square_jobs import MACHINE, Parities, Squares, SquaresRecipe
from vqshield.runs.jobs import Job, SubjectRequest, kinds
from vqshield.studies.certification_settings import CertificationSettings
from vqshield.studies.specification import EvaluationSettings

from vqshield.errors import InvalidInputError, MissingExtraError
from vqshield.runs import jobs
from vqshield.runs.executors import (
    Executor,
    LocalExecutor,
    ProcessesExecutor,
    RayExecutor,
    executor,
    list_executors,
)
from vqshield.runs.executors import ray as ray_module
from vqshield.runs.executors.base import finders, measure
from vqshield.studies.certification import Certification
from vqshield.studies.evaluation import Evaluation

SUBJECT = SubjectRequest(limit=3, device="cpu")
EVALUATION = EvaluationSettings(defenses=("prd:iterations=2",), runs=2, batch=2)
CERTIFICATION = CertificationSettings(defense="prd:iterations=2", certificate="vote", n0=2, n=4, batch=32)


@pytest.mark.parametrize(
    "by",
    [LocalExecutor(), pytest.param(ProcessesExecutor(workers=2), marks=pytest.mark.slow)],
    ids=lambda by: type(by).__name__,
)
class TestEveryExecutor:
    """What holds wherever cells are measured."""

    @pytest.mark.parametrize("kind", [Squares, Parities])
    def test_cells_are_measured_in_order_and_reported(
        self, tmp_path: Path, by: Executor, kind: type[Squares]
    ) -> None:
        recipe, reports = SquaresRecipe(tmp_path / "log", kind=kind, count=7), list[tuple[str, int]]()
        values = recipe.run(tmp_path / "out", by, lambda *report: reports.append(report))
        assert values == [number**2 for number in range(7)]
        assert reports == [(f"number {number}", 10 * number + 10) for number in range(7)]
        assert len((tmp_path / "out" / "times.jsonl").read_text().splitlines()) == 7

    def test_a_stopped_run_goes_on_where_it_was(self, tmp_path: Path, by: Executor) -> None:
        recipe, again, reports = (
            SquaresRecipe(tmp_path / "log"), SquaresRecipe(tmp_path / "again"), list[int]()
        )  # fmt: skip

        def stop(_: str, done: int) -> None:
            if done == 20:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            recipe.run(tmp_path / "out", by, stop)
        assert len(Squares(tmp_path / "out").records.read()) == 2
        assert again.run(tmp_path / "out", by, lambda _, done: reports.append(done)) == [0, 1, 4, 9]
        assert (reports, sorted(again.begun())) == ([30, 40], [2, 3]), "nothing is measured twice"
        finished = SquaresRecipe(tmp_path / "never")
        finished.run(tmp_path / "out", by, lambda *_: pytest.fail("nothing is left to report"))
        assert not finished.log.exists()


def test_what_is_measured_is_timed(tmp_path: Path) -> None:
    work = Squares(tmp_path)
    found = measure(work, work.cells[3])
    assert found.records[0].value == 9
    assert found.seconds >= 0


def test_cells_that_need_the_same_wait_for_the_first_of_them(tmp_path: Path) -> None:
    work = Parities(tmp_path, count=7)
    assert finders(work, 0) == {3: 1, 4: 2, 5: 1, 6: 2}
    assert finders(work, 2) == {4: 2, 5: 3, 6: 2}, "what was done before is there"
    assert finders(work, 7) == {}
    assert finders(Squares(tmp_path, count=7), 0) == {}, "work that shares nothing"


class SlowRay:
    """Stands for Ray: at each wait one task is finished, that which `choose` takes of those that can run."""

    def __init__(self, choose: Callable[[list[int]], int]) -> None:
        self.choose, self.begun, self.finished = choose, list[tuple[int, int | None]](), list[int]()
        self.most = 0

    def begin(self, number: int, after: int | None) -> int:
        self.begun.append((number, after))
        return number

    def wait(self, tasks: list[int]) -> tuple[list[int], list[int]]:
        blocked = {number for number, after in self.begun if after in tasks}
        self.most = max(self.most, len(set(tasks) - blocked))
        chosen = self.choose([task for task in tasks if task not in blocked])
        self.finished.append(chosen)
        return [chosen], [task for task in tasks if task != chosen]

    def nodes(self) -> list[dict[str, Any]]:
        return [{"Alive": True, "Resources": {"CPU": 1}}, {"Alive": False, "Resources": {"CPU": 9}}]


@pytest.mark.parametrize("choose", [min, max])
@pytest.mark.parametrize("ahead", [None, 1, 2, 5])
def test_whichever_task_ends_first_the_order_is_that_of_the_cells(
    choose: Callable[[list[int]], int], ahead: int | None
) -> None:
    ray, finder = SlowRay(choose), {3: 2, 4: 2, 7: 6, 90: 2}
    given = list(RayExecutor(ahead=ahead)._in_order(ray, range(1, 100), finder, ray.begin))
    assert given == [number for number, _ in ray.begun] == list(range(1, 100)), "one task a cell"
    assert sorted(ray.finished) == given
    assert all(ray.finished.index(finder[each]) < ray.finished.index(each) for each in finder)
    assert ray.most <= (ahead or 2) + 2, "at most so many at once, and those that another held up"


def test_a_long_cell_stops_the_others_only_when_many_are_held() -> None:
    ray = SlowRay(max)
    assert next(RayExecutor(ahead=2)._in_order(ray, range(100), {}, ray.begin)) == 0
    assert len(ray.begun) == 16 * 2
    assert ray.finished == [*range(1, 32), 0]


def test_a_task_that_waits_leaves_its_place_to_another() -> None:
    ray = SlowRay(min)
    finder = {1: 0, 2: 0}
    assert next(RayExecutor(ahead=2)._in_order(ray, range(9), finder, ray.begin)) == 0
    assert ray.begun == [(0, None), (1, 0), (2, 0), (3, None)]
    ray = SlowRay(min)
    given = RayExecutor(ahead=1)._in_order(ray, range(9), {4: 0}, ray.begin)
    assert list(given) == list(range(9))
    assert (4, None) in ray.begun, "what was found long ago is not waited for"


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
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(ray_module, "import_module", missing)
    job = Job(kind="evaluation", settings=EVALUATION, subject=SUBJECT)
    with pytest.raises(MissingExtraError, match=r"pip install 'vqshield\[cluster\]'"):
        RayExecutor().run(Squares(tmp_path), recipe=job)


@pytest.mark.parametrize("by", [RayExecutor(), ProcessesExecutor()])
def test_work_that_no_other_process_can_make_is_named(tmp_path: Path, by: Executor) -> None:
    with pytest.raises(InvalidInputError, match=r"Squares was made without a recipe.*jobs\.Job"):
        by.run(Squares(tmp_path))


def test_the_manifest_names_the_threads_of_the_workers(tmp_path: Path) -> None:
    whole = Squares(tmp_path).specification
    there = {**whole, "machine": {**MACHINE, "threads": 3}}
    assert RayExecutor(cpus=3).specification(Squares(tmp_path)) == there
    assert ProcessesExecutor(cpus=3).specification(Squares(tmp_path)) == there
    assert LocalExecutor().specification(Squares(tmp_path)) == whole


@pytest.mark.parametrize(
    ("kind", "settings", "expected"),
    [("evaluation", EVALUATION, Evaluation), ("certification", CERTIFICATION, Certification)],
)
def test_a_job_travels_and_gives_the_same_work(
    tmp_path: Path, kind: str, settings: Any, expected: type
) -> None:
    job = Job(kind=kind, settings=settings, subject=SUBJECT, shared=tmp_path / "shared")
    arrived = pickle.loads(pickle.dumps(job))
    assert arrived == job
    here, there = job.work(job.subject.load(), tmp_path / "here"), arrived.rebuild(tmp_path / "there")
    assert type(here) is type(there) is expected
    assert here.specification == there.specification
    assert here.cells == there.cells
    assert here.recipe == job
    here.run()
    LocalExecutor().run(there)
    written = [(tmp_path / name / "records.jsonl").read_bytes() for name in ("here", "there")]
    assert written[0] == written[1] != b""


def test_a_job_hands_its_report_and_its_shared_folder_on(tmp_path: Path) -> None:
    settings = EvaluationSettings(
        defenses=("prd:iterations=2",), attacks=("pgd:steps=1,surrogate=none",), runs=1, batch=3
    )
    job = Job(kind="evaluation", settings=settings, subject=SUBJECT, shared=tmp_path / "shared")
    seen: list[int] = []
    job.work(job.subject.load(), tmp_path / "out", lambda _, done: seen.append(done)).run()
    assert seen == sorted(seen) != []
    assert len(list((tmp_path / "shared").iterdir())) == 1


def test_a_kind_may_have_nothing_to_share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def make(settings: Any, subject: Any, folder: Path, report: Any) -> Squares:
        return Squares(folder, count=settings)

    monkeypatch.setitem(jobs._KINDS, "squares", make)
    assert {"evaluation", "certification", "squares"} <= set(kinds())
    job = Job(kind="squares", settings=3, subject=SUBJECT, shared=tmp_path)
    work = job.work(None, tmp_path / "out")  # type: ignore[arg-type]
    assert isinstance(work, Squares)
    assert len(work.cells) == 3


def test_an_unknown_kind_is_named() -> None:
    with pytest.raises(
        InvalidInputError, match=r"kind='hope' is unknown; choose one of certification, .*evaluation"
    ):
        Job(kind="hope", settings=None, subject=SUBJECT)


def test_paths_of_a_job_hold_in_every_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    request = SubjectRequest(data="cifar10", data_dir=Path("data"), classifier="weights.safetensors")
    assert (request.data_dir, request.classifier) == (
        tmp_path / "data",
        str(tmp_path / "weights.safetensors"),
    )
    assert SubjectRequest(classifier="timm:resnet18").classifier == "timm:resnet18"
    assert SUBJECT.classifier == "small-cifar10"
    job = Job(kind="evaluation", settings=EVALUATION, subject=request, shared=Path("shared"))
    assert job.shared == tmp_path / "shared"


def test_a_run_of_an_evaluation_takes_an_executor(tmp_path: Path) -> None:
    used: list[str] = []

    class Watched(LocalExecutor):
        def specification(self, work: Any) -> dict[str, Any]:
            used.append(type(work).__name__)
            return super().specification(work)

    Evaluation(EVALUATION, SUBJECT.load(), tmp_path / "evaluation").run(executor=Watched())
    Certification(CERTIFICATION, SUBJECT.load(), tmp_path / "certification").run(executor=Watched())
    assert used == ["Evaluation", "Certification"]
    assert json.loads((tmp_path / "evaluation" / "manifest.json").read_text())["batch"] == 2
