"""What a worker does and answers, asked in this process."""

import json
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from square_studies import Raising, Squares, full_disk, full_gpu, mistake, no_file, refusal, stubborn

from vqshield.core.errors import InvalidInputError, MissingExtraError, VqshieldError
from vqshield.evaluation.study import Evaluation
from vqshield.runs.executors import processes
from vqshield.runs.executors.pool import Failure, Request, _identity, answer, checked
from vqshield.runs.executors.processes import ProcessesExecutor
from vqshield.runs.study import AnyStudy
from vqshield.runs.target import Target


def request_for(study: AnyStudy) -> Request:
    return Request(study=study, identity=_identity(study))


def test_a_worker_loads_the_study_once_and_answers_with_errors() -> None:
    study = Evaluation(
        target=Target(limit=2, device="cpu"), defenses=("prd:iterations=2",), attacks=("pgd:steps=1",), runs=1
    )
    request = request_for(study)
    checked.cache_clear()
    sent = [pickle.loads(pickle.dumps(request)) for _ in study.cells]
    found = [answer(each, number, 1).records for number, each in enumerate(sent)]
    assert checked.cache_info().misses == 1
    assert found == [study.measure(cell) for cell in study.cells]
    broken = replace(request, identity=json.dumps({**json.loads(request.identity), "seed": 1}))
    refused = answer(broken, 0, 1)
    assert isinstance(refused, Failure)
    with pytest.raises(InvalidInputError, match="a worker found seed=0 where the run started with seed=1"):
        raise refused.error()
    checked.cache_clear()


def test_every_kind_of_refusal_can_travel() -> None:
    original = MissingExtraError("timm", "timm")  # its constructor does not take its message
    arrived = Failure(type(original), (str(original),)).error()
    assert type(arrived) is MissingExtraError
    assert str(arrived) == str(original)


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
def test_an_error_arrives_as_it_was(
    error: Callable[[], Exception], expected: type[Exception], message: str
) -> None:
    answer = processes._answer(request_for(Squares(trap=Raising(error))), 2, 1)
    arrived = pickle.loads(pickle.dumps(answer)).error()
    assert (type(arrived), str(arrived)) == (expected, message)
    notes = "".join(getattr(arrived, "__notes__", []))
    assert ("raise self.error()" in notes) == (error is not refusal), "where a mistake was made"


def test_a_gpu_that_is_full_is_no_mistake_of_the_program() -> None:
    answer = processes._answer(request_for(Squares(trap=Raising(full_gpu))), 2, 1)
    with pytest.raises(VqshieldError, match=r"too little memory for this many workers: CUDA out of.*fewer"):
        raise answer.error()


@pytest.mark.parametrize(
    ("given", "size"), [({}, 7), ({"cpus": 2}, 3), ({"cpus": 9}, 1), ({"workers": 5}, 5)]
)
def test_as_many_workers_as_there_are_cpus_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: dict[str, int], size: int
) -> None:
    class EnoughError(Exception):
        pass

    def team(*_: object, size: int, threads: int, retries: int) -> None:
        raise EnoughError(size, threads)

    monkeypatch.setattr(processes, "Team", team)
    monkeypatch.setattr(processes, "_cpus", lambda: 7)
    with pytest.raises(EnoughError) as found:
        Squares().run(tmp_path, ProcessesExecutor(**given))
    assert found.value.args == (size, given.get("cpus", 1))
