"""A small evaluation for other processes, plain or with a trap on the way; and what it gives in this one."""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path

import pytest
import torch

from vqshield.core.errors import InvalidInputError
from vqshield.evaluation.records import EvaluationManifest, EvaluationRecord
from vqshield.evaluation.study import Evaluation, EvaluationCell
from vqshield.runs.executors import Executor, LocalExecutor
from vqshield.runs.study import CellProgress, Progress, no_cell_progress, no_progress
from vqshield.runs.target import Target

IMAGES, CELLS_A_CHUNK = 4, 7
IGNORANT, STE = "pgd:steps=2,surrogate=none", "pgd:steps=2"
STUDY = Evaluation(
    target=Target(limit=IMAGES, device="cpu"),
    defenses=("prd:iterations=2", "randdisc:codes=3"),
    attacks=(STE, IGNORANT),
    runs=2,
    batch=1,
)
ONE_CHUNK = replace(STUDY, batch=IMAGES)
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
    run(replace(STUDY), folder, LocalExecutor())
    return folder


@pytest.fixture
def by_value() -> Iterator[None]:
    """Studies of this file reach workers, which cannot import it."""
    cloudpickle = pytest.importorskip("ray").cloudpickle
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    yield
    cloudpickle.unregister_pickle_by_value(sys.modules[__name__])


def run(study: Evaluation, folder: Path, executor: Executor, progress: Progress = no_progress) -> bytes:
    # A fresh copy: the manifest of one that has run already names the threads of that moment.
    executor.run(replace(study), folder, progress=progress)
    return (folder / "records.jsonl").read_bytes()


def second_chunk(cell: EvaluationCell) -> bool:
    """Its first cell."""
    return cell.images.start == 1 and cell.defense == "none"


def defended(cell: EvaluationCell) -> bool:
    """All but the first cell of a chunk."""
    return cell.defense != "none"


def asked(study: Evaluation) -> dict[str, object]:
    """What a study of another class is given to ask the same."""
    return {each.name: getattr(study, each.name) for each in fields(study)}


@dataclass(frozen=True, kw_only=True)
class Trapped(Evaluation):
    """With something in the way of some cells; `log` says on which node those were begun."""

    log: Path
    trap: Callable[[], None]
    caught: Callable[[EvaluationCell], bool] = second_chunk

    def measure(
        self, cell: EvaluationCell, progress: CellProgress = no_cell_progress
    ) -> list[EvaluationRecord]:
        import ray

        if self.caught(cell):
            with self.log.open("a") as file:
                file.write(ray.get_runtime_context().get_node_id() + "\n")
            self.trap()
        return Evaluation.measure(self, cell, progress)


class ElsewhereManifest:
    """A cached property, which could not travel by value: it has a lock."""

    def __get__(self, study: "Elsewhere", _: object = None) -> EvaluationManifest:
        if study is None or os.getpid() == study.head:
            raise InvalidInputError("device='cuda' cannot be used here")
        found = replace(STUDY).manifest
        machine = {**found.machine, "device": "a GPU", "processor": "a worker's"}
        return vars(study).setdefault("manifest", replace(found, machine=machine))


@dataclass(frozen=True, kw_only=True)
class Elsewhere(Evaluation):
    """Cannot be loaded by the process that asks, as where that has no GPU."""

    head: int
    manifest = ElsewhereManifest()


def mistake() -> None:
    raise ZeroDivisionError("a mistake of the program")


def refusal() -> None:
    raise InvalidInputError("colour=3 should be blue")


def death() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
