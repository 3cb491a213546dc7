"""Running an experiment: its summary against the records, work that is shared, settings that never mix."""

import json
import statistics
from dataclasses import replace
from pathlib import Path

import pytest
from small_experiments import CPU, CURVES, PART, lines_of, planned, small, text_of
from vqshield.reproduction.estimates import estimate
from vqshield.reproduction.files import experiment
from vqshield.reproduction.part import Options
from vqshield.reproduction.sources import Sources
from vqshield.reproduction.summary import summarise_folder

import vqshield
from vqshield.data import SAMPLE_NAME
from vqshield.errors import FileFormatError, InvalidInputError
from vqshield.reproduction import published
from vqshield.reproduction.runner import Reproduction
from vqshield.runs.target import BUNDLED

DIVERGENCE = """
[[parts]]
kind = "divergence"
name = "few"
title = "Few"
data = "cifar10"
unit = "1/255"
eps = [0, 8]
count = 1
codebooks = 100
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


def test_the_summary_says_what_the_records_say(tmp_path: Path) -> None:
    plan = planned(small(), tmp_path, limit=4, adaptive="adaptive-v1-quick")
    plan.run()
    (part,) = json.loads((tmp_path / "T2" / "summary.json").read_text())["parts"]
    assert part["status"] == "complete"
    protocol = lines_of(tmp_path / "T2" / "few" / "protocol")
    adaptive = lines_of(tmp_path / "T2" / "few" / "adaptive")
    ours = {row["defense"]: row["figures"] for row in part["rows"] if not row["literature"]}
    attack = "pgd:steps=2,surrogate=none"
    for defense in ("prd:size=2,codes=25", "swrd:size=3,codes=25"):
        for key, name in (("natural", "none"), ("pgd", attack)):
            of = [line for line in protocol if (line["defense"], line["attack"]) == (defense, name)]
            runs, figure = accuracies(of), ours[defense][key]
            assert figure["ours"] == pytest.approx(statistics.fmean(runs))
            assert figure["std"] == pytest.approx(statistics.stdev(runs))
            assert (figure["n"], figure["runs"]) == (4, 2) == (len(of), len(runs))
            said = published.find(
                published.published("T2").figures, data="cifar10", defense=defense, measure=key
            )
            assert (figure["paper"], figure["paper_std"]) == (said.value, said.std)
        tried = [line for line in adaptive if line["defense"] == defense and line["attack"] != "none"]
        assert {line["image"] for line in tried} == {0}, "adaptive_count = 1"
        least = min(line["selected"] for line in tried)
        strongest = [statistics.fmean(accuracies([line])) for line in tried if line["selected"] == least]
        assert ours[defense]["adaptive"]["ours"] in strongest
    bare = accuracies([line for line in protocol if (line["defense"], line["attack"]) == ("none", "none")])
    assert ours["none"]["natural"]["ours"] == statistics.fmean(bare)


def test_literature_and_stand_ins_are_in_the_summary(tmp_path: Path) -> None:
    planned(small(), tmp_path, limit=1, runs=1).run()
    summary = json.loads((tmp_path / "T2" / "summary.json").read_text())
    (part,) = summary["parts"]
    wang = next(row for row in part["rows"] if row["title"] == "WANG")
    assert (wang["literature"], wang["figures"]["pgd"]["paper"]) == (True, 0.6728)
    assert "bundled sample stands in" in part["stand_in"]
    assert (part["data"]["images"], part["classifier"]["name"]) == (1, "small-cifar10")
    assert summary["notes"] == published.inconsistencies("T2")
    manifest = json.loads((tmp_path / "T2" / "experiment.json").read_text())
    assert manifest["file"] == text_of(PART)
    (run,) = manifest["parts"][0]["made"]
    assert {name: run[name] for name in ("limit", "runs", "adaptive", "seed")} == {
        "limit": 1, "runs": 1, "adaptive": "none", "seed": 0,
    }  # fmt: skip
    assert run["version"] == vqshield.__version__
    assert summarise_folder(tmp_path / "T2") == summary


def test_progress_runs_up_to_all_the_work(tmp_path: Path) -> None:
    plan = planned(small(CURVES, PART.replace('"few"', '"more"')), tmp_path, limit=2)
    seen: list[int] = []
    plan.watch(lambda _, done: seen.append(done))
    plan.run()
    assert seen == sorted(seen)
    assert seen[-1] == plan.work


def test_an_estimate_counts_cells_and_what_is_done(tmp_path: Path) -> None:
    plan = planned(small(CURVES), tmp_path, limit=2)
    (before,) = estimate(list(plan.works().values())).values()
    assert before["done"] == 0
    assert before["seconds"] > 0
    assert not tmp_path.joinpath("T2").exists(), "nothing is written"
    plan.run()
    (after,) = estimate(list(plan.works().values())).values()
    assert after["done"] == after["records"] == before["records"] == len(lines_of(*plan.works()))
    assert after["seconds"] == 0


def test_a_gallery(tmp_path: Path) -> None:
    planned(small(GALLERY, id="F1", shows="gallery"), tmp_path).run()
    (part,) = summarise_folder(tmp_path / "F1")["parts"]
    assert part["status"] == "complete"
    assert len(lines_of(tmp_path / "F1" / "few" / "gallery")) == 2 * 3
    assert len(part["gallery"]) == 2


def test_the_kl_diagnostic(tmp_path: Path) -> None:
    planned(small(DIVERGENCE, id="F8", shows="curves"), tmp_path).run()
    (part,) = summarise_folder(tmp_path / "F8")["parts"]
    assert part["status"] == "complete"
    found = {(line["defense"], line["eps"]): line for line in lines_of(tmp_path / "F8" / "few" / "study")}
    for row in part["rows"]:
        line = found[row["defense"], row["x"] * (1 / 255)]
        assert row["figures"]["kl"]["ours"] == pytest.approx(line["kl"])
        assert row["figures"]["floor"]["ours"] == pytest.approx(line["floor"])
    assert [row["figures"]["kl"]["paper"] for row in part["rows"]] == [3, 180]


def test_the_worked_example(tmp_path: Path) -> None:
    planned(experiment("E1"), tmp_path).run()
    (part,) = summarise_folder(tmp_path / "E1")["parts"]
    shown = [row["figures"]["proposition1"] for row in part["rows"]]
    assert [(round(each["ours"], 3), each["paper"]) for each in shown] == [(0.494, 0.40), (0.584, 0.45)]


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
    assert [(part["name"], part["status"]) for part in summary["parts"]] == [
        ("few", "complete"),
        ("more", "complete"),
    ]


def test_what_is_missing_is_said_and_the_rest_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VQSHIELD_CACHE", str(tmp_path / "empty"))
    mnist = CURVES.replace('"few"', '"digits"').replace('"cifar10"', '"mnist"')
    planned(small(CURVES, mnist), tmp_path, limit=1, runs=1).run()
    first, second = summarise_folder(tmp_path / "T2")["parts"]
    assert (first["status"], second["status"]) == ("complete", "not run")
    assert "--data-dir mnist=FOLDER" in second["why"]
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
    given = Sources(classifiers={"cifar10": str(tmp_path / "none.safetensors")}, device="cpu")
    plan = Reproduction(small(), options=Options(limit=1), sources=given, out=tmp_path / "out")
    with pytest.raises(InvalidInputError, match=r"none\.safetensors' is no file"):
        plan.run()
    assert not (tmp_path / "out").exists()


TWO = (PART, PART.replace('name = "few"', 'name = "other"').replace('data = "cifar10"', 'data = "cifar100"'))


def test_a_run_without_its_images_keeps_what_was_measured_and_said(tmp_path: Path) -> None:
    file = small(*TWO)
    wider = replace(CPU, readers={**CPU.readers, "cifar100": SAMPLE_NAME}, classifiers={"cifar100": BUNDLED})
    options = Options(limit=2, runs=1, adaptive="none")
    Reproduction(file, options=options, sources=wider, out=tmp_path).run()
    before = summarise_folder(tmp_path / "T2")["parts"][1]
    assert (before["status"], "stand in for those of cifar100" in before["stand_in"]) == ("complete", True)
    planned(file, tmp_path, limit=2, runs=1).run()  # knows of no images for cifar100
    assert summarise_folder(tmp_path / "T2")["parts"][1] == before


def test_every_run_that_had_a_share_is_named_and_no_other(tmp_path: Path) -> None:
    made = []
    for limit, commit_then in ((1, "first"), (2, "second")):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("vqshield.reproduction.runner.commit", lambda found=commit_then: found)
            part = PART if limit == 1 else PART.replace('name = "few"', 'name = "more"')
            plan = planned(small(PART, part) if limit == 2 else small(), tmp_path, limit=1, runs=1)
            plan.run()
        made = summarise_folder(tmp_path / "T2")["parts"]
    assert [[run["commit"] for run in part["made"]] for part in made] == [["first"], ["second"]]


def test_protocol_and_suite_are_compared_on_the_same_images(tmp_path: Path) -> None:
    planned(small(), tmp_path, limit=3, runs=2, adaptive="adaptive-v1-quick").run()
    (part,) = summarise_folder(tmp_path / "T2")["parts"]
    row = next(row for row in part["rows"] if row["defense"] == "swrd:size=3,codes=25")
    first = [
        line
        for line in lines_of(tmp_path / "T2" / "few" / "protocol")
        if (line["defense"], line["image"]) == (row["defense"], 0) and line["attack"].startswith("pgd")
    ]
    right = statistics.fmean(answer == first[0]["label"] for answer in first[0]["predictions"])
    assert (row["figures"]["pgd"]["paired"], row["figures"]["pgd"]["paired_n"]) == (right, 1)
    assert row["figures"]["pgd"]["n"] == 3
    assert "paired" not in row["figures"]["adaptive"]


@pytest.mark.parametrize("key", ["natural", "adaptive"])
def test_columns_of_our_own_cannot_be_taken(key: str) -> None:
    with pytest.raises(FileFormatError, match=f"attacks has the key '{key}'"):
        small(PART.replace("{ pgd =", f"{{ {key} ="))
