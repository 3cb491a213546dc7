"""Ray: records as this process writes them, errors as they were, and what may be asked of a cluster."""

import json
import os
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from ray_jobs import (
    JOB,
    OPTIONS,
    SUBJECT,
    Counted,
    Trapped,
    by_value,
    death,
    here,
    mistake,
    one_thread,
    refusal,
    run,
    run_trapped,
)
from vqshield.runs.jobs import Job, SubjectRequest
from vqshield.studies.certification_settings import CertificationSettings

from vqshield.classifiers import Normalised, build, save_classifier
from vqshield.errors import InvalidInputError, MissingExtraError, VqshieldError
from vqshield.runs.executors import LocalExecutor, RayExecutor
from vqshield.runs.executors.workers import Refusal, Request, answer, rebuilt

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
    found = run(JOB, tmp_path, RayExecutor(), lambda _, done: seen.append(done))
    assert found == (here / "records.jsonl").read_bytes()
    manifests = [json.loads((folder / "manifest.json").read_text()) for folder in (here, tmp_path)]
    assert manifests[0] == manifests[1]
    assert seen == sorted(set(seen))
    assert len(seen) == 8 * 7, "cells"
    assert len((tmp_path / "times.jsonl").read_text().splitlines()) == 8 * 7
    assert ray.is_initialized(), "what was connected stays so"

    job = Job(
        kind="certification",
        settings=CertificationSettings(defense="prd:iterations=2", n0=5, n=20, draws=10, batch=32),
        subject=SUBJECT,
        shared=tmp_path / "shared",
    )
    certified = [run(job, tmp_path / type(by).__name__, by) for by in (RayExecutor(), LocalExecutor())]
    assert certified[0] == certified[1] != b""
    assert len(list((tmp_path / "shared").iterdir())) == 4, "found by one, used by the other"


def test_an_attack_that_ignores_the_defense_is_made_once(
    two_cpus: None, by_value: None, here: Path, tmp_path: Path
) -> None:
    job = replace(JOB, shared=tmp_path / "shared")
    os.mkfifo(tmp_path / "pipe")
    run_trapped(Counted(tmp_path / "log", tmp_path / "pipe", job), tmp_path / "out", RayExecutor())
    made = Counter((tmp_path / "log").read_text().splitlines())
    ignorant = [f"none pgd:steps=2,surrogate=none {start}" for start in range(8)]
    aware = [f"{name} pgd:steps=2 {start}" for name in JOB.settings.defenses for start in range(8)]
    assert made == Counter([*ignorant, *aware])
    assert (tmp_path / "out" / "records.jsonl").read_bytes() == (here / "records.jsonl").read_bytes()


def test_a_run_that_was_stopped_goes_on_with_another_executor(
    two_cpus: None, here: Path, tmp_path: Path
) -> None:
    reports = 0

    def stop(*_: object) -> None:
        nonlocal reports
        reports += 1
        if reports == 10:  # within the second chunk, while later ones are being measured
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(JOB, tmp_path, RayExecutor(), stop)
    assert (tmp_path / "records.jsonl").read_bytes().count(b"\n") == 10
    assert run(JOB, tmp_path, LocalExecutor()) == (here / "records.jsonl").read_bytes()


def random_classifier(seed: int) -> Normalised:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return Normalised(build("small", classes=10), mean=[0.5] * 3, std=[0.25] * 3)


def test_an_error_in_a_task_arrives_as_it_was(two_cpus: None, tmp_path: Path) -> None:
    weights = tmp_path / "weights.safetensors"
    save_classifier(weights, random_classifier(seed=1))
    job = Job(
        kind="evaluation", settings=JOB.settings, subject=SubjectRequest(classifier=str(weights), limit=2)
    )
    work = job.work(job.subject.load(), tmp_path / "out")
    weights.rename(tmp_path / "elsewhere")
    with pytest.raises(InvalidInputError, match="is no file; give a safetensors file") as refused:
        work.run(executor=RayExecutor())
    assert type(refused.value) is InvalidInputError
    assert "ray" not in str(refused.value)

    save_classifier(weights, random_classifier(seed=2))
    with pytest.raises(InvalidInputError, match=r"a worker found classifier=.*where the run began with"):
        work.run(executor=RayExecutor())
    assert (tmp_path / "out" / "records.jsonl").read_bytes() == b""


def test_more_than_the_cluster_has_is_refused(two_cpus: None, tmp_path: Path) -> None:
    for options, found in (({"cpus": 3}, "cpus=3, gpus=0"), ({"gpus": 1}, "cpus=1, gpus=1")):
        with pytest.raises(InvalidInputError, match=f"{found} fits on no node; they have 2 CPUs and 0 GPUs"):
            run(JOB, tmp_path / found, RayExecutor(**options))


@pytest.mark.parametrize(
    ("trap", "expected", "message", "begun"),
    [
        (mistake, ZeroDivisionError, "a mistake of the program", 1),
        (refusal, InvalidInputError, "^colour=3 should be blue$", 1),
        (death, VqshieldError, "a task was lost for good, retries=1, by .*what is finished is kept", 2),
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
        run_trapped(Trapped(tmp_path / "log", trap), tmp_path / "out", RayExecutor(retries=1))
    assert len((tmp_path / "log").read_text().splitlines()) == begun
    assert (tmp_path / "out" / "records.jsonl").read_bytes().count(b"\n") == 7, "the first chunk is kept"


def test_a_worker_makes_the_work_once_and_answers_with_errors(tmp_path: Path) -> None:
    """What runs in a worker, run here."""
    work = JOB.rebuild(tmp_path)
    identity = {**work.specification, "machine": {**work.specification["machine"]}}
    identity["machine"] = {name: identity["machine"][name] for name in ("vqshield", "torch", "device")}
    request = Request(recipe=JOB, folder=tmp_path, identity=json.dumps(identity))
    rebuilt.cache_clear()
    found = [answer(request, number, 1).records for number in range(4)]  # type: ignore[union-attr]
    assert rebuilt.cache_info().misses == 1
    assert found == [work.measure(cell) for cell in work.cells[:4]]
    broken = replace(request, identity=json.dumps({**identity, "seed": 1}))
    refused = answer(broken, 0, 1)
    assert isinstance(refused, Refusal)
    with pytest.raises(InvalidInputError, match="a worker found seed=0 where the run began with seed=1"):
        raise refused.error()
    rebuilt.cache_clear()


def test_every_kind_of_error_can_travel() -> None:
    original = MissingExtraError("timm", "timm")  # its constructor does not take its message
    arrived = Refusal(kind=type(original), message=str(original)).error()
    assert type(arrived) is MissingExtraError
    assert str(arrived) == str(original)
