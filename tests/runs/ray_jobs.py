"""A small evaluation for other processes, plain or with a trap on the way; and what it gives in this one."""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from vqshield.runs.jobs import Job, SubjectRequest
from vqshield.studies.specification import EvaluationSettings

from vqshield.errors import InvalidInputError
from vqshield.runs.executors import Executor, LocalExecutor
from vqshield.runs.study import Report

SUBJECT = SubjectRequest(limit=8, device="cpu")
EVALUATION = EvaluationSettings(
    defenses=("prd:iterations=2", "randdisc:codes=3"),
    attacks=("pgd:steps=2", "pgd:steps=2,surrogate=none"),
    runs=2,
    batch=1,
)
JOB = Job(kind="evaluation", settings=EVALUATION, subject=SUBJECT)
ONE_CHUNK = replace(JOB, settings=replace(EVALUATION, batch=8))
OPTIONS = {"include_dashboard": False, "log_to_driver": False, "object_store_memory": 100 * 2**20}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """As many as a task with one CPU has: the manifest names them."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The records of this process."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("here")
    run(JOB, folder, LocalExecutor())
    return folder


@pytest.fixture
def by_value() -> Iterator[None]:
    """Recipes of this file reach workers, which cannot import it."""
    cloudpickle = pytest.importorskip("ray").cloudpickle
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    yield
    cloudpickle.unregister_pickle_by_value(sys.modules[__name__])


def run(job: Job, folder: Path, executor: Executor, report: Report = lambda *_: None) -> bytes:
    job.work(job.subject.load(), folder, report).run(executor=executor)
    return (folder / "records.jsonl").read_bytes()


def second_chunk(cell: Any) -> bool:
    """Its first cell."""
    return bool(cell.images.start == 1 and cell.defense == "none")


def defended(cell: Any) -> bool:
    """All but the first cell of a chunk."""
    return bool(cell.defense != "none")


@dataclass(frozen=True)
class Trapped:
    """A job, with something in the way of some cells; `log` says where those were begun."""

    log: Path
    trap: Callable[[], None]
    caught: Callable[[Any], bool] = second_chunk
    job: Job = JOB

    def rebuild(self, folder: Path) -> Any:
        import ray

        work: Any = self.job.rebuild(folder)
        original = work.measure

        def measure(cell: Any) -> Any:
            if self.caught(cell):
                with self.log.open("a") as file:
                    file.write(ray.get_runtime_context().get_node_id() + "\n")
                self.trap()
            return original(cell)

        work.measure = measure
        return work


@dataclass(frozen=True)
class Counted:
    """A job whose workers write down every attack that they make.

    The first on a bare classifier takes until the second chunk is begun, as `pipe` tells it: by then all the
    cells of the first chunk that could make it again have had their chance.
    """

    log: Path
    pipe: Path
    job: Job

    def rebuild(self, folder: Path) -> Any:
        work: Any = self.job.rebuild(folder)
        original, attack = work.measure, work._through

        def measure(cell: Any) -> Any:
            if second_chunk(cell):
                self.pipe.write_text("begun")
            return original(cell)

        def through(cell: Any, *images: Any) -> Any:
            line = f"{cell.defense} {cell.attack} {cell.images.start}\n"
            with self.log.open("a") as file:
                file.write(line)
            first = cell.defense == "none" and cell.images.start == 0
            if first and self.log.read_text().count(line) == 1:
                self.pipe.read_text()
            return attack(cell, *images)

        work.measure, work._through = measure, through
        return work


def run_trapped(
    recipe: Trapped | Counted, folder: Path, executor: Executor, report: Report = lambda *_: None
) -> None:
    work = recipe.job.work(recipe.job.subject.load(), folder, report)
    work.recipe = recipe  # type: ignore[attr-defined]
    work.run(executor=executor)  # type: ignore[attr-defined]


def mistake() -> None:
    raise ZeroDivisionError("a mistake of the program")


def refusal() -> None:
    raise InvalidInputError("colour=3 should be blue")


def death() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
