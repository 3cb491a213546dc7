"""What holds for every bundled experiment: it can be planned and started, and has all published values."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vqshield.classifiers import BUNDLED
from vqshield.core.files import write_json
from vqshield.core.serialization import to_plain
from vqshield.core.settings import parse_spec
from vqshield.data import sample
from vqshield_paper.gallery import Gallery
from vqshield_paper.reports import caveats, write_report
from vqshield_paper.reproduction import published
from vqshield_paper.reproduction.experiments import experiment, list_experiments, read_experiment
from vqshield_paper.reproduction.model import PartSummary, Summary, Value
from vqshield_paper.reproduction.parts import Options
from vqshield_paper.reproduction.runner import MANIFEST, Reproduction, summarise_folder
from vqshield_paper.reproduction.targets import TargetChoices
from vqshield_paper.worked_example import WorkedExample

IMAGES = 50  # as many as F8 needs
STUDIES = {
    "T1": 2, "T2": 2, "T3": 2, "T4": 2, "T5": 6, "F1": 1, "F4": 6, "F5": 6, "F6a": 4, "F6b": 2, "F7": 9,
    "F8": 3, "F9": 12, "F10": 2, "A1": 2, "E1": 1,
}  # fmt: skip
"""For every data set the paper's attacks and the adaptive ones; for F7 one for each defense."""


@pytest.fixture(scope="session")
def four(tmp_path_factory: pytest.TempPathFactory) -> TargetChoices:
    """Fifty images and the bundled classifier replace each of the four data sets."""
    folder, few = tmp_path_factory.mktemp("images"), sample(IMAGES)
    np.savez(folder / "test.npz", images=few.images.numpy(), labels=few.labels.numpy(), classes=few.classes)
    return TargetChoices(
        readers=dict.fromkeys(published.DATA, "npz"),
        folders=dict.fromkeys(published.DATA, folder),
        classifiers=dict.fromkeys(published.DATA, BUNDLED),
        device="cpu",
    )


@pytest.fixture(params=list_experiments())
def id(request: pytest.FixtureRequest) -> str:
    """Every experiment in turn."""
    return request.param


def plan_of(id: str, four: TargetChoices, out: Path, **options: Any) -> Reproduction:
    return Reproduction(experiment(id), options=Options(**options), targets=four, out=out)


def summary_of(id: str, four: TargetChoices, out: Path) -> Summary:
    """Of an experiment that was planned, but not started."""
    plan = plan_of(id, four, out)
    plan.folder.mkdir(parents=True)
    write_json(plan.folder / MANIFEST, to_plain(plan.manifest()))
    return summarise_folder(plan.folder)


def test_there_is_a_file_for_everything_that_was_published() -> None:
    assert list_experiments() == published.ids()
    assert set(STUDIES) == set(list_experiments())


def test_a_file_means_the_same_when_it_is_read_again_from_a_manifest(id: str) -> None:
    found = experiment(id)
    assert read_experiment(found.text, source="manifest") == found


def test_every_study_is_planned_in_a_folder_of_its_own(id: str, four: TargetChoices, tmp_path: Path) -> None:
    plan = plan_of(id, four, tmp_path)
    folders = [folder for part in plan.parts for folder in part.studies]
    assert len(folders) == len(set(folders)) == STUDIES[id]
    for part in plan.parts:
        home = part.part.home(tmp_path, id)
        assert part.chosen.missing is None
        assert {folder.parent for folder in part.studies} == {home}
    assert list(tmp_path.iterdir()) == [], "planning writes nothing"


def test_without_the_adaptive_suite_the_papers_protocol_is_left(
    id: str, four: TargetChoices, tmp_path: Path
) -> None:
    names = {folder.name for folder in plan_of(id, four, tmp_path, adaptive="none").studies}
    assert "adaptive" not in names
    assert names


@pytest.mark.parametrize("on_gpu", [False, True])
def test_a_limit_and_a_seed_reach_every_study(
    id: str, four: TargetChoices, tmp_path: Path, on_gpu: bool
) -> None:
    plan = plan_of(id, four, tmp_path, limit=3, runs=2, seed=7, on_gpu=on_gpu)
    for study in plan.studies.values():
        if isinstance(study, WorkedExample):
            continue
        assert study.seed == 7
        assert study.target.limit <= 6 if isinstance(study, Gallery) else study.target.limit == 3
        assert getattr(study, "runs", 2) == 2


def test_every_study_can_be_begun(id: str, four: TargetChoices, tmp_path: Path) -> None:
    plan = plan_of(id, four, tmp_path)
    assert len(plan.studies) == STUDIES[id]
    assert plan.work > 0
    for study in plan.studies.values():
        keys = [key for cell in study.cells for key in cell.keys]
        assert len(keys) == len(set(keys)) > 0
        assert all(study.title(cell) and study.cost(cell) > 0 for cell in study.cells)
    assert list(tmp_path.iterdir()) == []


def test_what_was_not_begun_says_so(id: str, four: TargetChoices, tmp_path: Path) -> None:
    summary = summary_of(id, four, tmp_path)
    assert (summary.id, summary.complete) == (id, False)
    assert summary.paper.caption == published.section(id).caption
    assert [part.name for part in summary.parts] == [part.name for part in experiment(id).parts]
    for part in summary.parts:
        assert (part.status, part.why) == ("not run", "it was not started")
        assert all(value.ours is None for _, value in values_of(part))


def values_of(part: PartSummary) -> Iterator[tuple[tuple[Any, ...], Value]]:
    """Row, column and value."""
    for row in part.rows:
        for key, value in row.values.items():
            yield (row.title, row.defense, row.x, key), value


def who(defense: str) -> tuple[Any, ...]:
    """A defense however its settings are ordered; the paper's values leave β out."""
    name, settings = parse_spec(defense)
    settings.pop("beta", None)
    return name, *sorted(settings.items())


def test_every_published_value_stands_in_its_place_and_nothing_else_does(
    id: str, four: TargetChoices, tmp_path: Path
) -> None:
    shown = [
        (planned.data, title if not defense else who(defense), x, key, value.paper, value.paper_std)
        for part, planned in zip(summary_of(id, four, tmp_path).parts, experiment(id).parts, strict=True)
        for (title, defense, x, key), value in values_of(part)
        if value.paper is not None
    ]
    expected = [
        (each.data, each.literature or who(each.defense or ""), each.x, each.measure, each.value, each.std)
        for each in published.section(id).values
    ]
    assert set(shown) == set(expected)
    # The paper does not say which of two readings of β T4's swRD has: its values are given for both.
    assert len(shown) == len(expected) + (2 if id == "T4" else 0)


@pytest.mark.slow
def test_a_report_can_be_made_of_nothing(id: str, four: TargetChoices, tmp_path: Path) -> None:
    """Of what was not started: the paper's values alone, and that they are."""
    summary = summary_of(id, four, tmp_path / "out")
    written = {path.name for path in write_report(summary, tmp_path)}
    assert {"report.html", "report.md", "report.tex"} <= written
    assert "not finished" in " ".join(caveats(summary))
