"""The ladder: rungs from the right studies, the strongest attack for each image, resumable to the byte."""

import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import vqshield as vq
from vqshield.classifiers import small_cifar10
from vqshield.core.errors import InvalidInputError
from vqshield.core.serialization import from_plain, to_plain
from vqshield.evaluation.study import Evaluation
from vqshield.evaluation.summary import EvaluationSummary
from vqshield.ladders.black_box import BlackBoxStudy
from vqshield.ladders.rungs import RUNGS
from vqshield.ladders.settings import LadderSettings
from vqshield.ladders.study import LadderSummary, ladder, parse_control
from vqshield.runs.study import Recorded

PRD = "prd:codes=4,iterations=1"
FEW = LadderSettings(
    calls=(100, 110), draws=(1, 2), suite="pgd:steps=2,eot=2", ignorant="pgd:steps=2,surrogate=none",
    transfer="pgd:steps=2,momentum=1.0", own_arch="small", own_epochs=1, own_batch=16, runs=3, selection=2,
    batch=2,
)  # fmt: skip


@pytest.fixture(scope="module")
def training(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of CIFAR-10, with random images: enough of them for a step."""
    folder, source = tmp_path_factory.mktemp("cifar10"), np.random.default_rng(0)
    for name, count in [*((f"data_batch_{i}.bin", 4) for i in range(1, 6)), ("test_batch.bin", 4)]:
        records = source.integers(0, 256, (count, 3073), dtype=np.uint8)
        records[:, 0] %= 10
        records.tofile(folder / name)
    return folder


@pytest.fixture(scope="module")
def finished(training: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, LadderSummary]:
    out = tmp_path_factory.mktemp("ladder")
    return out, _run(out, training)


def _run(out: Path, training: Path) -> LadderSummary:
    return ladder(
        defense=PRD, sources=("small-cifar10",), settings=FEW, limit=2, train_dir=training, out=out,
        device="cpu",
    )  # fmt: skip


def test_every_rung_has_its_rows_and_the_control_its_reasons(finished: tuple[Path, LadderSummary]) -> None:
    _, summary = finished
    assert summary.complete
    assert [(row.rung, row.calls) for row in summary.rows if row.subject == "model"] == [
        ("natural", None), ("transfer", None), ("ignorant", None), ("score", 100), ("score", 110),
        ("decision", 100), ("decision", 110), ("grey-box", None), ("white-box", None),
    ]  # fmt: skip
    assert [(row.rung, row.calls) for row in summary.rows if row.subject == "bare"] == [
        ("natural", None), ("transfer", None), ("score", 100), ("score", 110), ("decision", 100),
        ("decision", 110), ("grey-box", None), ("white-box", None),
    ]  # fmt: skip
    assert [(each.subject, each.rung) for each in summary.plan.not_measured] == [("bare", "ignorant")]
    score, bare = summary.row("score"), summary.row("score", "bare")
    assert score is not None
    assert bare is not None
    assert score.attacks == ("square", "square:eot=2")
    assert bare.attacks == ("square",), "draws of a bare classifier are all the same"
    for row in summary.rows:
        assert (row.n, row.runs, len(row.tries)) == (2, 3, 3)
        assert row.tries[0] == pytest.approx(row.mean)
        assert list(row.tries) == sorted(row.tries, reverse=True)
        if row.calls is not None:
            assert row.used is not None
            assert 0 < row.used <= row.calls
        if row.subject == "bare":
            assert len({*row.tries}) == 1, "a deterministic model says the same every time"


def test_a_stopped_ladder_continues_to_the_same_records(
    finished: tuple[Path, LadderSummary], training: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, summary = finished
    stopped, measure = tmp_path / "stopped", BlackBoxStudy.measure
    shutil.copytree(out / "own", stopped / "own")  # training resumes by tests of its own

    def interrupted(self, cell, *more):
        if cell.attack.startswith("rays"):
            raise KeyboardInterrupt
        return measure(self, cell, *more)

    monkeypatch.setattr(BlackBoxStudy, "measure", interrupted)
    with pytest.raises(KeyboardInterrupt):
        _run(stopped, training)
    partial = LadderSummary.read(stopped)
    assert not partial.complete
    assert partial.row("white-box") == replace(
        summary.row("white-box"), seconds=partial.row("white-box").seconds
    )
    assert partial.row("natural", "bare") is None
    monkeypatch.undo()
    _run(stopped, training)
    for study in ("model/evaluation", "model/remote", "bare/evaluation", "bare/remote"):
        records = [folder / study / "records.jsonl" for folder in (out, stopped)]
        assert records[0].read_bytes() == records[1].read_bytes()


def test_a_finished_ladder_is_read_and_run_again_without_measuring(
    finished: tuple[Path, LadderSummary], training: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, summary = finished
    for study in (Evaluation, BlackBoxStudy):
        monkeypatch.setattr(study, "measure", None)
    monkeypatch.setattr("vqshield.training.run.train_on", None)
    assert _run(out, training) == summary
    assert LadderSummary.read(out) == summary
    plain = to_plain(summary)
    assert from_plain(LadderSummary, plain, "summary.json") == summary


def test_another_ladder_in_the_same_folder_is_refused(
    finished: tuple[Path, LadderSummary], training: Path
) -> None:
    with pytest.raises(InvalidInputError, match=r"holds records made with not_measured"):
        ladder(defense=PRD, settings=FEW, limit=2, out=finished[0])
    with pytest.raises(InvalidInputError, match=r"there is no ladder\.json"):
        LadderSummary.read(training)


def test_natural_and_white_box_are_those_of_an_evaluation(finished: tuple[Path, LadderSummary]) -> None:
    out, summary = finished
    by_hand = EvaluationSummary.of(Evaluation.read(out / "model" / "evaluation"))
    for rung, attack in (("natural", "none"), ("ignorant", FEW.ignorant), ("white-box", FEW.suite)):
        row, same = summary.row(rung), by_hand.row(PRD, attack)
        assert (row.mean, row.std, row.standard_error) == (same.mean, same.std, same.standard_error)


def test_the_strongest_attack_counts_for_each_image(finished: tuple[Path, LadderSummary]) -> None:
    """Of two attacks that break one image each, the row shows both broken."""
    out, summary = finished
    recorded = BlackBoxStudy.read(out / "model" / "remote")
    told = []
    for record in recorded.records:
        breaks = {"square": 0, "square:eot=2": 1}.get(record.attack)
        wrong = (record.label + 1) % 10
        won = breaks == record.image
        told.append(
            replace(record, selected=0 if won else 2, predictions=(wrong if won else record.label,) * 3)
        )
    changed = Recorded(manifest=recorded.manifest, records=told, seconds={})
    plan = replace(summary.plan, subjects=summary.plan.subjects[:1])
    row = LadderSummary.of(plan, [(None, changed)]).row("score")
    assert row is not None
    assert row.mean == pytest.approx(0)


def test_more_calls_never_hurt_the_attacker(finished: tuple[Path, LadderSummary]) -> None:
    """An image that was broken after fewer calls stays broken, whatever the search holds later."""
    out, summary = finished
    recorded = BlackBoxStudy.read(out / "model" / "remote")
    told = [
        replace(
            record, selected=0 if record.calls == 100 else 2,
            predictions=((record.label + (record.calls == 100)) % 10,) * 3,
        )
        for record in recorded.records
    ]  # fmt: skip
    changed = Recorded(manifest=recorded.manifest, records=told, seconds={})
    plan = replace(summary.plan, subjects=summary.plan.subjects[:1])
    found = LadderSummary.of(plan, [(None, changed)])
    assert [found.row("decision", calls=calls).mean for calls in (100, 110)] == [0, 0]
    assert found.row("transfer").mean == 1


def test_modules_in_memory_have_a_ladder_too() -> None:
    few = replace(FEW, calls=(100,), draws=(1,))
    photos = vq.defend(small_cifar10(), PRD)
    images, labels = torch.rand(2, 3, 32, 32), torch.tensor([0, 1])
    found = ladder(photos, images, labels, settings=few, train_dir="somewhere")
    assert found.plan.subjects[0].defense == PRD
    assert {each.rung: each.reason for each in found.plan.not_measured if each.subject == "model"} == {
        "transfer": "no source was given",
        "grey-box": "there is no folder for the attacker's network",
    }
    with pytest.raises(InvalidInputError, match="has a defense already"):
        ladder(photos, images, labels, defense="swrd")


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("bare=small-cifar10", ("bare", "small-cifar10", "none")),
        ("noise=n.safetensors+gaussian:sigma=0.06", ("noise", "n.safetensors", "gaussian:sigma=0.06")),
        ("x=a+b.safetensors+none", ("x", "a+b.safetensors", "none")),
    ],
)
def test_a_control_is_a_name_a_classifier_and_perhaps_a_defense(text: str, parsed) -> None:
    assert parse_control(text) == parsed


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("small-cifar10", "should be NAME=CLASSIFIER or NAME=CLASSIFIER+DEFENSE"),
        ("=small-cifar10", "should be NAME=CLASSIFIER"),
        ("model=small-cifar10", "not 'model'"),
        ("a/b=small-cifar10", "letters, digits and hyphens"),
        ("noise=n.safetensors+gausian:sigma=0.06", "defense='gausian' is unknown"),
    ],
)
def test_controls_that_cannot_be_are_refused(text: str, message: str) -> None:
    with pytest.raises(InvalidInputError, match=re.escape(message)):
        parse_control(text)


def test_a_plus_sign_in_the_name_of_a_file_is_no_defense(tmp_path: Path) -> None:
    (tmp_path / "a+b.safetensors").touch()
    text = f"x={tmp_path / 'a+b.safetensors'}"
    assert parse_control(text) == ("x", str(tmp_path / "a+b.safetensors"), "none")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"calls": ()}, "calls=() should be"),
        ({"calls": (500, 100)}, "that ascend"),
        (
            {"calls": (50,)},
            "calls=50 with draws=2 allows 25 queries per image, too few for a query attack to "
            "mean anything; give at least 100 calls",
        ),
        ({"draws": ()}, "draws are missing"),
        ({"draws": (50,)}, "calls=100 with draws=50 allows 2 queries per image"),
        ({"suite": "adaptive-v0"}, "attack='adaptive-v0' is unknown"),
        ({"ignorant": "pgd:steps=2"}, "knows the defense; give surrogate=none"),
        ({"diversity": 2.0}, "diversity=2"),
        ({"eps": 8.0}, "eps=8"),
    ],
)
def test_settings_that_cannot_work_are_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidInputError, match=re.escape(message)):
        replace(FEW, **change)


def test_every_rung_says_what_it_takes() -> None:
    assert [rung.name for rung in RUNGS] == [
        "natural", "transfer", "ignorant", "score", "decision", "grey-box", "white-box",
    ]  # fmt: skip
    assert all(rung.knows and rung.needs for rung in RUNGS)
    assert LadderSettings().suite == "adaptive-v2"
    assert LadderSettings.quick().suite == "adaptive-v1:precision=tf32"


def test_the_precision_of_queries_is_named_where_it_is_not_the_usual_one() -> None:
    assert [each.name for each in FEW.query_attacks(random=False)] == ["square", "rays"]
    fast = replace(FEW, query_precision="bf16", draws=(1, 5))
    assert [each.name for each in fast.query_attacks(random=True)] == [
        "square:precision=bf16", "square:eot=5,precision=bf16", "rays:precision=bf16",
        "rays:eot=5,precision=bf16",
    ]  # fmt: skip
    assert "query_precision" not in to_plain(FEW)
    with pytest.raises(InvalidInputError, match="query_precision='half' is unknown"):
        replace(FEW, query_precision="half")
