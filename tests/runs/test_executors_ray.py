"""Ray: records as this process writes them, errors as they were, and what may be asked of a cluster."""

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from ray_studies import (
    CELLS_A_CHUNK,
    IMAGES,
    OPTIONS,
    STUDY,
    Elsewhere,
    Trapped,
    asked,
    by_value,
    death,
    here,
    mistake,
    one_thread,
    refusal,
    run,
)

from vqshield.certification.study import Certification
from vqshield.classifiers import Normalised, build, save_classifier
from vqshield.core.errors import InvalidInputError, VqshieldError
from vqshield.runs.executors import LocalExecutor
from vqshield.runs.executors.ray import RayExecutor
from vqshield.runs.target import Target

ray = pytest.importorskip("ray")
pytestmark = pytest.mark.slow
__all__ = ["by_value", "here", "one_thread"]  # fixtures


@pytest.fixture(scope="module")
def two_cpus() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        ray.init(address="local", num_cpus=2, **OPTIONS)
    yield
    ray.shutdown()


def test_records_and_manifest_are_those_of_one_process(two_cpus: None, here: Path, tmp_path: Path) -> None:
    seen: list[int] = []
    found = run(STUDY, tmp_path, RayExecutor(), lambda _, done, __: seen.append(done))
    assert found == (here / "records.jsonl").read_bytes()
    manifests = [json.loads((folder / "manifest.json").read_text()) for folder in (here, tmp_path)]
    assert manifests[0] == manifests[1]
    assert seen == sorted(set(seen))
    assert len(seen) == IMAGES * CELLS_A_CHUNK
    assert len((tmp_path / "times.jsonl").read_text().splitlines()) == IMAGES * CELLS_A_CHUNK
    assert ray.is_initialized(), "what was connected stays so"

    study = Certification(target=STUDY.target, defense="prd:iterations=2", n0=5, n=20, draws=10, batch=32)
    certified = [run(study, tmp_path / type(by).__name__, by) for by in (RayExecutor(), LocalExecutor())]
    assert certified[0] == certified[1] != b""


def test_the_device_is_that_of_the_tasks(two_cpus: None, by_value: None, here: Path, tmp_path: Path) -> None:
    study = Elsewhere(**asked(STUDY), head=os.getpid())
    with pytest.raises(InvalidInputError, match="cannot be used here"):
        run(study, tmp_path / "no GPU taken", RayExecutor())
    found = run(study, tmp_path / "out", RayExecutor(gpus=None))
    assert found == (here / "records.jsonl").read_bytes()
    manifests = [json.loads((each / "manifest.json").read_text()) for each in (here, tmp_path / "out")]
    manifests[0]["machine"]["device"] = "a GPU"
    assert manifests[1] == manifests[0]
    assert run(study, tmp_path / "out", RayExecutor(gpus=None)) == found, "resumed"


def test_a_run_that_was_stopped_continues_with_another_executor(
    two_cpus: None, here: Path, tmp_path: Path
) -> None:
    told = 0

    def stop(*_: object) -> None:
        nonlocal told
        told += 1
        if told == 10:  # within the second chunk, while later ones are being measured
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(STUDY, tmp_path, RayExecutor(), stop)
    assert (tmp_path / "records.jsonl").read_bytes().count(b"\n") == 10
    assert run(STUDY, tmp_path, LocalExecutor()) == (here / "records.jsonl").read_bytes()


def random_classifier(seed: int) -> Normalised:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return Normalised(build("small", classes=10), mean=[0.5] * 3, std=[0.25] * 3)


def test_an_error_in_a_task_arrives_as_it_was(two_cpus: None, tmp_path: Path) -> None:
    weights = tmp_path / "weights.safetensors"
    save_classifier(weights, random_classifier(seed=1))
    study = replace(STUDY, target=Target(classifier=str(weights), limit=2, device="cpu"))
    assert len(study.cells) == 2 * CELLS_A_CHUNK  # it is loaded here
    weights.rename(tmp_path / "elsewhere")
    with pytest.raises(InvalidInputError, match="is not a file; give a safetensors file") as refused:
        RayExecutor().run(study, tmp_path / "out")
    assert type(refused.value) is InvalidInputError
    assert "ray" not in str(refused.value)

    save_classifier(weights, random_classifier(seed=2))
    with pytest.raises(InvalidInputError, match=r"a worker found classifier=.*where the run started with"):
        RayExecutor().run(study, tmp_path / "out")
    assert (tmp_path / "out" / "records.jsonl").read_bytes() == b""


def test_more_than_the_cluster_has_is_refused(two_cpus: None, tmp_path: Path) -> None:
    for options, found in (({"cpus": 3}, "cpus=3, gpus=0"), ({"gpus": 1}, "cpus=1, gpus=1")):
        with pytest.raises(InvalidInputError, match=f"{found} fits on no node; they have 2 CPUs and 0 GPUs"):
            run(STUDY, tmp_path / found, RayExecutor(**options))


@pytest.mark.parametrize(
    ("trap", "expected", "message", "begun"),
    [
        (mistake, ZeroDivisionError, "a mistake of the program", 1),
        (refusal, InvalidInputError, "^colour=3 should be blue$", 1),
        (death, VqshieldError, "a task was lost for good, retries=1, by .*finished cells are kept", 2),
    ],
)
def test_only_what_was_lost_is_begun_again(
    two_cpus: None,
    by_value: None,
    tmp_path: Path,
    trap: Callable[[], None],
    expected: type[Exception],
    message: str,
    begun: int,
) -> None:
    with pytest.raises(expected, match=message):
        run(
            Trapped(**asked(STUDY), log=tmp_path / "log", trap=trap), tmp_path / "out", RayExecutor(retries=1)
        )
    assert len((tmp_path / "log").read_text().splitlines()) == begun
    assert (tmp_path / "out" / "records.jsonl").read_bytes().count(b"\n") == CELLS_A_CHUNK, "kept"
