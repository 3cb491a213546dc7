"""What holds for every study: it travels as it is, and gives the same records with a folder and without."""

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from square_studies import Squares

from vqshield.certification.study import Certification
from vqshield.core.errors import InvalidInputError
from vqshield.core.serialization import to_plain
from vqshield.evaluation.study import Evaluation
from vqshield.runs.executors import LocalExecutor, run_study
from vqshield.runs.study import Study
from vqshield.runs.target import Target
from vqshield_paper.gallery import Gallery
from vqshield_paper.kl.fitting import MixtureSettings
from vqshield_paper.kl.measurement import DivergenceSettings
from vqshield_paper.kl.study import KLStudy
from vqshield_paper.worked_example import Numbers, WorkedExample

TARGET = Target(limit=3, device="cpu")
PRD, IGNORANT = "prd:iterations=2", "pgd:steps=1,surrogate=none"
MIXTURE = MixtureSettings(components=2, covariance="diag", iterations=2)
STUDIES: dict[str, Study[Any, Any, Any]] = {
    "evaluation": Evaluation(target=TARGET, defenses=(PRD,), attacks=(IGNORANT,), runs=2, batch=2),
    "certification": Certification(target=TARGET, defense=PRD, attack=IGNORANT, draws=3, n0=2, n=4, batch=32),
    "kl": KLStudy(
        target=TARGET,
        defenses=("randdisc:codes=2",),
        eps=(0.1,),
        attack=IGNORANT,
        images=2,
        divergence=DivergenceSettings(codebooks=10, label_codebooks=2, lines=2, samples=9, mixture=MIXTURE),
    ),
    "gallery": Gallery(target=TARGET, defenses=(PRD,), attack=IGNORANT, images=(1, 0)),
    "worked example": WorkedExample(numbers=Numbers(draws=50)),
}
every_study = pytest.mark.parametrize("study", STUDIES.values(), ids=STUDIES)


@every_study
def test_a_study_travels_as_it_is_and_gives_the_same_records(
    study: Study[Any, Any, Any], tmp_path: Path
) -> None:
    LocalExecutor().run(study, tmp_path / "here")
    sent = pickle.dumps(study)
    assert len(sent) < 2000, "what it has loaded stays here"
    arrived = pickle.loads(sent)
    assert study.travels
    assert arrived == study
    assert type(arrived) is type(study)
    assert (arrived.manifest, arrived.cells) == (study.manifest, study.cells)
    LocalExecutor().run(arrived, tmp_path / "there")
    for name in ("records.jsonl", "manifest.json"):
        here, there = ((tmp_path / where / name).read_bytes() for where in ("here", "there"))
        assert here == there != b""


@every_study
def test_in_memory_it_is_what_the_folder_holds(study: Study[Any, Any, Any], tmp_path: Path) -> None:
    told: list[tuple[str, int, int]] = []
    found = run_study(study, None, progress=lambda *said: told.append(said))
    kept = run_study(study, tmp_path)
    assert list(found.records) == list(kept.records)
    assert to_plain(found.manifest) == to_plain(kept.manifest)
    assert found.seconds == {}
    assert kept.seconds
    assert [done for _, done, _ in told] == sorted(done for _, done, _ in told)
    assert told[-1][1:] == (study.work, study.work)


@every_study
def test_the_manifest_that_was_written_tells_the_cells(study: Study[Any, Any, Any], tmp_path: Path) -> None:
    with study.folder(tmp_path).writing(study.manifest):
        pass
    read = type(study).read(tmp_path)
    assert to_plain(read.manifest) == to_plain(study.manifest)
    assert list(study.cells_of(read.manifest)) == list(study.cells)
    assert (list(read.records), read.seconds) == ([], {})


def test_an_executor_needs_a_folder() -> None:
    with pytest.raises(InvalidInputError, match=r"an executor is given without a folder.*give out as well"):
        run_study(Squares(), None, executor=LocalExecutor())


def test_progress_inside_a_cell_does_not_pass_its_cost() -> None:
    class Talkative(Squares):
        def measure(self, cell: Any, progress: Callable[[str, int], None]) -> Any:
            for done in (5, 99):
                progress("counting", done)
            return super().measure(cell)

    told: list[tuple[str, int, int]] = []
    Talkative(count=2).in_memory(lambda *said: told.append(said))
    assert told == [
        (doing, first + done, 20)
        for number, first in enumerate((0, 10))
        for doing, done in (("counting", 5), ("counting", 10), (f"number {number}", 10))
    ]
