"""Running an experiment: its summary against the records, work that is shared, settings that never mix."""

import json
import statistics
from dataclasses import replace
from pathlib import Path

import pytest
from small_experiments import CPU, CURVES, PART, lines_of, planned, small, text_of

import vqshield
from vqshield.classifiers import BUNDLED
from vqshield.core.errors import FileFormatError, InvalidInputError
from vqshield.core.serialization import from_plain, to_plain
from vqshield.data import SAMPLE_NAME
from vqshield_paper.reproduction import published
from vqshield_paper.reproduction.experiments import experiment
from vqshield_paper.reproduction.model import PartSummary, Summary
from vqshield_paper.reproduction.parts import Options
from vqshield_paper.reproduction.runner import Reproduction, summarise_folder
from vqshield_paper.reproduction.targets import TargetChoices

DIVERGENCE = """
[[parts]]
kind = "divergence"
name = "few"
title = "Few"
data = "cifar10"
unit = "1/255"
eps = [0, 8]
count = 1
codebooks = 20
attack = "pgd:steps=2,surrogate=none"
defenses = ["randdisc:codes=25"]
"""
GALLERY = """
[[parts]]
kind = "gallery"
name = "few"
title = "Few"
data = "cifar10"
eps = "16/255"
attack = "pgd:steps=2,surrogate=none"
shown = [3, 1]
defenses = ["swrd:size=3,codes=25"]
"""


def accuracies(lines: list[dict]) -> list[float]:
    """Of every run, over the images."""
    runs = zip(*(line["predictions"] for line in lines), strict=True)
    return [statistics.fmean(a == line["label"] for a, line in zip(run, lines, strict=True)) for run in runs]


def part_of(folder: Path) -> PartSummary:
    """What the records of an experiment with one part say."""
    (part,) = summarise_folder(folder).parts
    return part


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Summary]:
    """The small experiment with the adaptive suite on one image: its folder, and what the run gave."""
    out = tmp_path_factory.mktemp("whole")
    return out / "T2", planned(small(), out, limit=3, adaptive="adaptive-v1-quick").run()


def test_the_summary_says_what_the_records_say(whole: tuple[Path, Summary]) -> None:
    folder, summary = whole
    (part,) = summary.parts
    assert part.status == "complete"
    protocol = lines_of(folder / "few" / "protocol")
    adaptive = lines_of(folder / "few" / "adaptive")
    ours = {row.defense: row for row in part.rows if not row.literature}
    attack = "pgd:steps=2,surrogate=none"
    for defense in ("prd:size=2,codes=25", "swrd:size=3,codes=25"):
        for key, name in (("natural", "none"), ("pgd", attack)):
            of = [line for line in protocol if (line["defense"], line["attack"]) == (defense, name)]
            runs, value = accuracies(of), ours[defense].value(key)
            assert value.ours == pytest.approx(statistics.fmean(runs))
            assert value.std == pytest.approx(statistics.stdev(runs))
            assert (value.n, value.runs) == (3, 2) == (len(of), len(runs))
            said = published.find(
                published.section("T2").values, data="cifar10", defense=defense, measure=key
            )
            assert (value.paper, value.paper_std) == (said.value, said.std)
        tried = [line for line in adaptive if line["defense"] == defense and line["attack"] != "none"]
        assert {line["image"] for line in tried} == {0}, "adaptive_count = 1"
        least = min(line["selected"] for line in tried)
        strongest = [statistics.fmean(accuracies([line])) for line in tried if line["selected"] == least]
        assert ours[defense].value("adaptive").ours in strongest
    bare = accuracies([line for line in protocol if (line["defense"], line["attack"]) == ("none", "none")])
    assert ours["none"].value("natural").ours == statistics.fmean(bare)


def test_summary_json_holds_the_summary(whole: tuple[Path, Summary]) -> None:
    folder, summary = whole
    plain = json.loads((folder / "summary.json").read_text())
    assert plain == to_plain(summary)
    assert from_plain(Summary, plain, "summary.json") == summary == summarise_folder(folder)


def test_literature_and_stand_ins_are_in_the_summary(tmp_path: Path) -> None:
    summary = planned(small(), tmp_path, limit=1, runs=1).run()
    (part,) = summary.parts
    wang = next(row for row in part.rows if row.title == "WANG")
    assert (wang.literature, wang.value("pgd").paper) == (True, 0.6728)
    assert "bundled sample replaces" in part.stand_in
    assert (part.data.images, part.classifier.name) == (1, "small-cifar10")
    assert list(summary.notes) == published.inconsistencies("T2")
    manifest = json.loads((tmp_path / "T2" / "experiment.json").read_text())
    assert manifest["file"] == text_of(PART)
    (run,) = manifest["parts"][0]["made"]
    assert {name: run[name] for name in ("limit", "runs", "adaptive", "seed")} == {
        "limit": 1, "runs": 1, "adaptive": "none", "seed": 0,
    }  # fmt: skip
    assert run["version"] == vqshield.__version__


def test_progress_runs_up_to_all_the_work(tmp_path: Path) -> None:
    plan = planned(small(CURVES, PART.replace('"few"', '"more"')), tmp_path, limit=1)
    seen: list[tuple[int, int]] = []
    plan.run(lambda _, done, total: seen.append((done, total)))
    assert seen == sorted(seen)
    assert {total for _, total in seen} == {plan.work}
    assert seen[-1][0] == plan.work


def test_an_estimate_counts_cells_and_what_is_done(tmp_path: Path) -> None:
    plan = planned(small(CURVES), tmp_path, limit=2)
    (before,) = plan.estimates().values()
    assert before.done == 0
    assert before.seconds > 0
    assert not tmp_path.joinpath("T2").exists(), "nothing is written"
    plan.run()
    (after,) = plan.estimates().values()
    assert after.done == after.records == before.records == len(lines_of(*plan.studies))
    assert after.seconds == 0


def test_a_gallery(tmp_path: Path) -> None:
    planned(small(GALLERY, id="F1", shows="gallery"), tmp_path).run()
    part = part_of(tmp_path / "F1")
    assert part.status == "complete"
    assert len(lines_of(tmp_path / "F1" / "few" / "gallery")) == 2 * 3
    assert len(part.gallery) == 2


def test_the_kl_diagnostic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_LABEL_CODEBOOKS", "_LABEL_LINES"):  # the second term takes most of the time
        monkeypatch.setattr(f"vqshield_paper.reproduction.parts.budgets.{name}", 2)
    planned(small(DIVERGENCE, id="F8", shows="curves"), tmp_path).run()
    part = part_of(tmp_path / "F8")
    assert part.status == "complete"
    found = {(line["defense"], line["eps"]): line for line in lines_of(tmp_path / "F8" / "few" / "study")}
    for row in part.rows:
        line = found[row.defense, row.x * (1 / 255)]
        assert row.value("kl").ours == pytest.approx(line["kl"])
        assert row.value("floor").ours == pytest.approx(line["floor"])
    assert [row.value("kl").paper for row in part.rows] == [3, 180]


def test_the_worked_example(tmp_path: Path) -> None:
    planned(experiment("E1"), tmp_path).run()
    shown = [row.value("proposition1") for row in part_of(tmp_path / "E1").rows]
    assert [(round(each.ours, 3), each.paper) for each in shown] == [(0.494, 0.40), (0.584, 0.45)]


def test_other_settings_never_mix_and_leave_everything_as_it_was(tmp_path: Path) -> None:
    planned(small(), tmp_path, limit=2, runs=1).run()
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(InvalidInputError, match=r"data\.images=2, this run has data\.images=1"):
        planned(small(), tmp_path, limit=1, runs=1).run()
    with pytest.raises(InvalidInputError, match=r"runs=1, this run has runs=3"):
        planned(small(), tmp_path, limit=2, runs=3).run()
    with pytest.raises(InvalidInputError, match=r"seed=0, this run has seed=1"):
        planned(small(), tmp_path, limit=2, runs=1, seed=1).run()
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_some_parts_after_others_are_all_in_the_summary(tmp_path: Path) -> None:
    whole = small(CURVES, CURVES.replace('"few"', '"more"'))
    for part in whole.parts:
        planned(replace(whole, parts=(part,)), tmp_path, limit=1, runs=1).run()
    summary = summarise_folder(tmp_path / "T2")
    assert [(part.name, part.status) for part in summary.parts] == [
        ("few", "complete"),
        ("more", "complete"),
    ]


def test_what_is_missing_is_said_and_the_rest_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VQSHIELD_CACHE", str(tmp_path / "empty"))
    mnist = CURVES.replace('"few"', '"digits"').replace('"cifar10"', '"mnist"')
    planned(small(CURVES, mnist), tmp_path, limit=1, runs=1).run()
    first, second = summarise_folder(tmp_path / "T2").parts
    assert (first.status, second.status) == ("complete", "not run")
    assert "--data-dir mnist=FOLDER" in second.why
    with pytest.raises(InvalidInputError, match=r"nothing of T2 can be run: .*--data-dir mnist=FOLDER"):
        planned(small(mnist), tmp_path / "other")


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"limit": 0}, "limit=0 should be >= 1"),
        ({"runs": 0}, "runs=0 should be >= 1"),
        ({"seed": -1}, "seed=-1"),
        ({"adaptive": "magic"}, r"adaptive='magic'.*adaptive-v1.*none"),
    ],
)
def test_options_that_cannot_work(options: dict, named: str) -> None:
    with pytest.raises(InvalidInputError, match=named):
        Options(**options)


def test_a_folder_without_or_with_a_broken_experiment(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"no experiment\.json in"):
        summarise_folder(tmp_path)
    (tmp_path / "experiment.json").write_text('{"id": ')
    with pytest.raises(FileFormatError, match=r"experiment\.json is not JSON"):
        summarise_folder(tmp_path)


def test_a_missing_classifier_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    given = TargetChoices(classifiers={"cifar10": str(tmp_path / "none.safetensors")}, device="cpu")
    plan = Reproduction(small(), options=Options(limit=1), targets=given, out=tmp_path / "out")
    with pytest.raises(InvalidInputError, match=r"none\.safetensors' is not a file"):
        plan.run()
    assert not (tmp_path / "out").exists()


TWO = (PART, PART.replace('name = "few"', 'name = "other"').replace('data = "cifar10"', 'data = "cifar100"'))


def test_a_run_without_its_images_keeps_what_was_measured_and_said(tmp_path: Path) -> None:
    file = small(*TWO)
    wider = replace(CPU, readers={**CPU.readers, "cifar100": SAMPLE_NAME}, classifiers={"cifar100": BUNDLED})
    options = Options(limit=2, runs=1, adaptive="none")
    Reproduction(file, options=options, targets=wider, out=tmp_path).run()
    before = summarise_folder(tmp_path / "T2").parts[1]
    assert (before.status, "replace those of cifar100" in before.stand_in) == ("complete", True)
    planned(file, tmp_path, limit=2, runs=1).run()  # knows of no images for cifar100
    assert summarise_folder(tmp_path / "T2").parts[1] == before


def test_every_run_that_had_a_share_is_named_and_no_other(tmp_path: Path) -> None:
    one, more = small(CURVES), small(CURVES, CURVES.replace('name = "few"', 'name = "more"'))
    for file, commit_then in ((one, "first"), (more, "second")):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("vqshield_paper.reproduction.runner.commit", lambda found=commit_then: found)
            summary = planned(file, tmp_path, limit=1, runs=1).run()
    assert [[run.commit for run in part.made] for part in summary.parts] == [["first"], ["second"]]


def test_protocol_and_suite_are_compared_on_the_same_images(whole: tuple[Path, Summary]) -> None:
    folder, summary = whole
    row = next(row for row in summary.parts[0].rows if row.defense == "swrd:size=3,codes=25")
    first = [
        line
        for line in lines_of(folder / "few" / "protocol")
        if (line["defense"], line["image"]) == (row.defense, 0) and line["attack"].startswith("pgd")
    ]
    right = statistics.fmean(answer == first[0]["label"] for answer in first[0]["predictions"])
    assert (row.value("pgd").paired, row.value("pgd").paired_n) == (right, 1)
    assert row.value("pgd").n == 3
    assert row.value("adaptive").paired is None


@pytest.mark.parametrize("key", ["natural", "adaptive"])
def test_columns_of_our_own_cannot_be_taken(key: str) -> None:
    with pytest.raises(FileFormatError, match=f"attacks has the key '{key}'"):
        small(PART.replace("{ pgd =", f"{{ {key} ="))
