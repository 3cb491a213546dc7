"""What holds for every bundled experiment: it can be planned and begun, and no published figure is lost."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from vqshield.reproduction.files import experiment, list_experiments, read
from vqshield.reproduction.part import Options
from vqshield.reproduction.sources import Sources
from vqshield.reproduction.summary import summarise
from vqshield.reproduction.untyped import typed  # until reproduction is typed
from vqshield.runs.jobs import Job

from vqshield.data import sample
from vqshield.reports.reproduction import caveats, write_report
from vqshield.reproduction import published
from vqshield.reproduction.runner import Reproduction
from vqshield.runs.target import BUNDLED
from vqshield.settings import parse_spec

IMAGES = 50  # as many as F8 needs
JOBS = {
    "T1": 2, "T2": 2, "T3": 2, "T4": 2, "T5": 6, "F1": 1, "F4": 6, "F5": 6, "F6a": 4, "F6b": 2, "F7": 9,
    "F8": 3, "F9": 12, "F10": 2, "A1": 2, "E1": 1,
}  # fmt: skip
"""For every data set the paper's attacks and the adaptive ones; for F7 one for each defense."""


@pytest.fixture(scope="session")
def four(tmp_path_factory: pytest.TempPathFactory) -> Sources:
    """Ten images and the bundled classifier stand for each of the four data sets."""
    folder, few = tmp_path_factory.mktemp("images"), sample(IMAGES)
    np.savez(folder / "test.npz", images=few.images.numpy(), labels=few.labels.numpy(), classes=few.classes)
    return Sources(
        readers=dict.fromkeys(published.DATA, "npz"),
        folders=dict.fromkeys(published.DATA, folder),
        classifiers=dict.fromkeys(published.DATA, BUNDLED),
        device="cpu",
    )


@pytest.fixture(params=list_experiments())
def id(request: pytest.FixtureRequest) -> str:
    """Every experiment in turn."""
    return request.param


def plan_of(id: str, four: Sources, out: Path, **options: Any) -> Reproduction:
    return Reproduction(experiment(id), options=Options(**options), sources=four, out=out)


def summary_of(id: str, four: Sources, out: Path) -> dict[str, Any]:
    """Of an experiment that was not begun."""
    plan = plan_of(id, four, out)
    return summarise(plan.experiment, out, plan.manifest())


def jobs_of(plan: Reproduction) -> list[tuple[Path, Job]]:
    return [pair for part in plan.parts for pair in part.jobs.items()]


def test_there_is_a_file_for_everything_that_was_published() -> None:
    assert list_experiments() == published.ids()
    assert set(JOBS) == set(list_experiments())


def test_a_file_means_the_same_when_it_is_read_again_from_a_manifest(id: str) -> None:
    found = experiment(id)
    assert read(found.text, source="manifest") == found


def test_every_job_is_planned_in_a_folder_of_its_own(id: str, four: Sources, tmp_path: Path) -> None:
    plan = plan_of(id, four, tmp_path)
    jobs = jobs_of(plan)
    assert len(jobs) == JOBS[id]
    assert len({folder for folder, _ in jobs}) == len(jobs)
    for part in plan.parts:
        home = part.part.home(tmp_path, id)
        assert part.source.why is None
        assert {folder.parent for folder in part.jobs} == {home}
    assert list(tmp_path.iterdir()) == [], "planning writes nothing"


def test_without_the_adaptive_suite_the_papers_protocol_is_left(
    id: str, four: Sources, tmp_path: Path
) -> None:
    names = {folder.name for folder, _ in jobs_of(plan_of(id, four, tmp_path, adaptive="none"))}
    assert "adaptive" not in names
    assert names


@pytest.mark.parametrize("on_gpu", [False, True])
def test_a_limit_and_a_seed_reach_every_job(id: str, four: Sources, tmp_path: Path, on_gpu: bool) -> None:
    for _, job in jobs_of(plan_of(id, four, tmp_path, limit=3, runs=2, seed=7, on_gpu=on_gpu)):
        if job.kind == "example":
            continue
        assert job.settings.seed == 7
        assert job.subject.limit <= 6 if job.kind == "gallery" else job.subject.limit == 3
        assert getattr(job.settings, "runs", 2) == 2


def test_every_job_can_be_begun(id: str, four: Sources, tmp_path: Path) -> None:
    plan = plan_of(id, four, tmp_path)
    works = plan.works()
    assert len(works) == JOBS[id]
    assert plan.work > 0
    for work in works.values():
        keys = [key for cell in work.cells for key in cell.keys]
        assert len(keys) == len(set(keys)) > 0
        assert all(work.title(cell) and work.cost(cell) > 0 for cell in work.cells)
    assert list(tmp_path.iterdir()) == []


def test_what_was_not_begun_says_so(id: str, four: Sources, tmp_path: Path) -> None:
    summary = summary_of(id, four, tmp_path)
    assert (summary["id"], summary["complete"]) == (id, False)
    assert summary["paper"]["caption"] == published.published(id).caption
    assert [part["name"] for part in summary["parts"]] == [part.name for part in experiment(id).parts]
    for part in summary["parts"]:
        assert (part["status"], part["why"]) == ("not run", "it was not begun")
        assert all(figure["ours"] is None for _, figure in figures_of(part))


def figures_of(part: dict[str, Any]) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
    """Row and column, and what stands there."""
    for row in part["rows"]:
        for key, figure in row["figures"].items():
            yield (row["title"], row["defense"], row["x"], key), figure


def who(defense: str) -> tuple[Any, ...]:
    """A defense however it is typed; the paper's figures leave β out."""
    name, settings = parse_spec(defense)
    settings.pop("beta", None)
    return name, *sorted(settings.items())


def test_every_published_figure_stands_in_its_place_and_nothing_else_does(
    id: str, four: Sources, tmp_path: Path
) -> None:
    shown = [
        (planned.data, title if not defense else who(defense), x, key, figure["paper"], figure["paper_std"])
        for part, planned in zip(summary_of(id, four, tmp_path)["parts"], experiment(id).parts, strict=True)
        for (title, defense, x, key), figure in figures_of(part)
        if figure.get("paper") is not None
    ]
    expected = [
        (each.data, each.literature or who(each.defense or ""), each.x, each.measure, each.value, each.std)
        for each in published.published(id).figures
    ]
    assert set(shown) == set(expected)
    # Nobody knows which of two readings of β the paper means by T4's swRD: its figures stand beside both.
    assert len(shown) == len(expected) + (2 if id == "T4" else 0)


def test_a_report_can_be_made_of_nothing(id: str, four: Sources, tmp_path: Path) -> None:
    """Of what was not begun: the paper's figures alone, and that they are."""
    summary = summary_of(id, four, tmp_path / "out")
    written = {path.name for path in write_report(typed(summary), tmp_path)}
    assert {"report.html", "report.md", "report.tex"} <= written
    assert "not finished" in " ".join(caveats(typed(summary)))
