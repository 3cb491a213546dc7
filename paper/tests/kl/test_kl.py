"""The KL diagnostic against budgets: records that are functions of the study, and their means."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from vqshield.attacks import ball
from vqshield.attacks.threats import threat
from vqshield.core.errors import InvalidInputError
from vqshield.core.seeds import derived_seed
from vqshield.core.serialization import to_plain
from vqshield.runs.arguments import defense_from
from vqshield.runs.executors import LocalExecutor
from vqshield.runs.study import Recorded
from vqshield.runs.target import Target
from vqshield_paper.kl.fitting import MixtureSettings
from vqshield_paper.kl.measurement import DivergenceSettings, measure
from vqshield_paper.kl.study import KLRecord, KLStudy, KLSummary, Mean

PRD, BARE = "prd:size=2,codes=3", "randdisc:codes=2,tau=0"
ATTACK, EPS = "pgd:steps=20,surrogate=none", 8 / 255
TARGET = Target(limit=3, device="cpu")
STUDY = KLStudy(
    target=TARGET,
    defenses=(PRD, BARE),
    eps=(0, EPS),
    attack=ATTACK,
    images=2,
    divergence=DivergenceSettings(
        codebooks=60,
        label_codebooks=2,
        lines=4,
        samples=200,
        mixture=MixtureSettings(components=2, covariance="diag", iterations=5),
    ),
)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[KLRecord]]:
    folder = tmp_path_factory.mktemp("kl")
    LocalExecutor().run(STUDY, folder)
    return folder, list(KLStudy.read(folder).records)


def test_a_record_for_every_image_budget_and_defense(finished) -> None:
    _, records = finished
    assert [(record.image, record.eps, record.defense) for record in records] == [
        (image, eps, name) for image in range(2) for name in (PRD, BARE) for eps in (0, EPS)
    ]
    for record in records:
        assert record.label == int(TARGET.images.labels[record.image])
        assert record.codebooks == 60
        assert record.dimensions == (36 if record.defense == PRD else 6)
        assert record.distance == pytest.approx(record.eps, abs=1e-6)  # PGD goes to the edge
        assert KLRecord.parse(record.line()) == record


def test_a_record_is_the_diagnostic_of_the_image_and_its_attacked_version(finished) -> None:
    record = finished[1][5]
    assert (record.image, record.eps, record.defense) == (1, EPS, PRD)
    images, labels = TARGET.part(range(STUDY.images))
    seed = derived_seed(STUDY.seed, ATTACK, f"eps={EPS}")
    shield = defense_from(PRD, seed=99)
    moved = threat(ATTACK, ball("linf", EPS), seed=seed)(TARGET.model, shield, images, labels)
    (expected,) = measure(shield, images[1:2], moved[1:2], settings=STUDY.divergence)
    for name in ("kl", "floor", "excess", "second"):
        assert getattr(record, name) == getattr(expected.diagnostic, name).value
        assert getattr(record, f"{name}_standard_error") == getattr(expected.diagnostic, name).standard_error
    assert record.proved == to_plain(expected.proved)
    assert record.log_likelihood - record.held_out_loss == pytest.approx(expected.diagnostic.held_out)


def test_without_an_attack_there_is_only_the_floor(finished) -> None:
    for still, moved in zip(finished[1][::4], finished[1][1::4], strict=True):
        assert (still.distance, still.second, still.proved) == (0, 0, {"first": 0, "second": 0})
        assert still.kl != still.floor, "fresh draws of x' = x"
        assert still.floor == moved.floor
        assert moved.excess > still.excess
        assert 0 < moved.second <= moved.proved["second"]


def test_what_is_not_computed_is_said_to_be_so(finished) -> None:
    record = finished[1][3]
    assert record.defense == BARE
    assert (record.second, record.second_standard_error) == (None, None)
    assert "not computed" in record.second_is
    assert record.proved["second"] is None
    assert record.proved["first"] > 0


@pytest.mark.parametrize("after", [3, 12, 30])
def test_stopped_anywhere_it_ends_in_the_same_bytes(finished, tmp_path: Path, after: int) -> None:
    calls = 0

    def stop(*_: object) -> None:
        nonlocal calls
        calls += 1
        if calls == after:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        LocalExecutor().run(replace(STUDY), tmp_path, progress=stop)
    assert len(KLStudy.read(tmp_path).records) < 8
    LocalExecutor().run(replace(STUDY), tmp_path)
    for name in ("records.jsonl", "manifest.json"):
        assert (tmp_path / name).read_bytes() == (finished[0] / name).read_bytes()


def test_a_cell_does_not_depend_on_those_before_it(finished) -> None:
    study = replace(STUDY)
    for number in (3, 1, 2):
        assert study.measure(study.cells[number]) == finished[1][2 * number : 2 * number + 2]


def test_progress_never_goes_back_and_ends_at_the_work() -> None:
    seen: list[tuple[str, int, int]] = []
    study = replace(STUDY, images=1)
    study.in_memory(lambda *said: seen.append(said))
    done = [each for _, each, _ in seen]
    assert done == sorted(done)
    assert (done[0], done[-1], study.work) == (0, 480, 480)
    assert seen[0] == (f"{PRD}, image 0: attack", 0, 480)


def test_an_attack_that_knows_the_defense_finds_another_image_for_each() -> None:
    study = replace(STUDY, attack="pgd:steps=2", eps=(EPS,), images=1, defenses=(PRD, "prd:size=2,codes=4"))
    moved = [study._moved(cell, EPS) for cell in study.cells]
    assert not torch.equal(*moved)
    other = replace(study, attack=ATTACK)
    assert torch.equal(*[other._moved(cell, EPS) for cell in other.cells])


def test_the_second_term_of_the_first_images_alone(finished) -> None:
    found = replace(STUDY, label_images=1).in_memory()
    records = list(found.records)
    assert records[:4] == finished[1][:4]
    for record, whole in zip(records[4:], finished[1][4:], strict=True):
        assert (record.second, record.second_standard_error) == (None, None)
        assert (record.kl, record.proved) == (whole.kl, whole.proved)
    row = KLSummary.of(found).rows[1]
    assert row.second == Mean(mean=records[1].second, standard_error=None)
    assert row.second_images == 1
    assert "not computed" not in row.second_is


def test_images_that_another_process_found_are_used(finished, tmp_path: Path) -> None:
    first, second = (replace(STUDY, shared=tmp_path) for _ in range(2))
    found = first.measure(first.cells[0])
    (kept,) = tmp_path.iterdir()
    before = kept.stat().st_mtime_ns
    assert second.measure(second.cells[0]) == found == finished[1][:2]
    assert (kept.stat().st_mtime_ns, len(list(tmp_path.iterdir()))) == (before, 1)


def test_the_summary_is_the_mean_over_images(finished) -> None:
    folder, records = finished
    summary = KLSummary.of(KLStudy.read(folder))
    assert summary.complete is True
    assert [(row.defense, row.eps, row.attack) for row in summary.rows] == [
        (name, eps, attack) for name in (PRD, BARE) for eps, attack in ((0, "none"), (EPS, ATTACK))
    ]
    for row in summary.rows:
        part = [each for each in records if (each.defense, each.eps) == (row.defense, row.eps)]
        assert row.images == len(part) == 2
        for name in ("kl", "floor", "excess"):
            one, two = (getattr(each, name) for each in part)
            assert getattr(row, name).mean == pytest.approx((one + two) / 2)
            assert getattr(row, name).standard_error == pytest.approx(abs(one - two) / 2)
        assert row.excess.mean == pytest.approx(row.kl.mean - row.floor.mean)
        assert (row.second is None) == (row.defense == BARE)
    assert json.loads(json.dumps(to_plain(summary))) == to_plain(summary)


def test_what_there_is_of_a_study_that_was_stopped(finished) -> None:
    whole = KLStudy.read(finished[0])
    summary = KLSummary.of(replace(whole, records=whole.records[:1]))
    assert summary.complete is False
    (row,) = summary.rows
    assert row.kl == Mean(mean=finished[1][0].kl, standard_error=None)
    assert KLSummary.of(Recorded(manifest=whole.manifest, records=[], seconds={})).rows == ()


def test_the_manifest_alone_tells_the_cells(finished) -> None:
    manifest = json.loads((finished[0] / "manifest.json").read_text())
    assert KLStudy.cells_of(KLStudy.read(finished[0]).manifest) == STUDY.cells
    assert manifest["divergence"]["mixture"]["components"] == 2
    assert manifest["sources"][0] == {"eps": 0.0, "attack": {"name": "none"}}
    assert manifest["sources"][1]["attack"]["attack"]["steps"] == 20


def test_the_defaults_are_those_of_the_figure() -> None:
    settings = KLStudy()
    assert [round(eps * 255, 6) for eps in settings.eps] == [0, 2, 4, 6, 8, 10, 12, 14, 16]
    assert (settings.divergence.codebooks, settings.divergence.samples) == (10_000, 100_000)
    assert settings.divergence.mixture.components == 8


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"label_images": -1}, "label_images=-1 should be >= 0"),
        ({"images": 0}, "images=0 should be >= 1"),
        ({"eps": ()}, "eps holds no budget"),
        ({"eps": (0.1, 0.1)}, "eps 0.1 is given twice"),
        ({"eps": (2.0,)}, "eps=2.0 should be from 0 to 1"),
        ({"eps": (math.nan,)}, "eps=nan"),
        ({"norm": "l7"}, "norm='l7' is unknown; choose one of l1, l2, linf"),
        ({"attack": "adaptive-v1"}, "attack='adaptive-v1' is unknown"),
        ({"attack": "pgd:hope=1"}, "pgd has no setting 'hope'"),
        ({"defenses": ()}, "no defense is given"),
        ({"defenses": (PRD, PRD)}, "given twice"),
        ({"defenses": ("none",)}, "defense 'none' has no codebooks"),
        ({"defenses": ("gaussian:sigma=0.1",)}, "unknown|has no codebooks"),
        ({"seed": -1}, "seed=-1"),
    ],
)
def test_settings_that_cannot_work_are_named(change: dict, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        replace(STUDY, **change)


def test_what_the_data_cannot_give_is_refused_before_any_work(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="size=40 should be at most"):
        LocalExecutor().run(replace(STUDY, defenses=("prd:size=40",)), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_fewer_images_than_asked_for_are_all_of_them() -> None:
    study = replace(STUDY, images=4)
    assert study.manifest.images == 3
    assert [cell.image for cell in study.cells] == [0, 0, 1, 1, 2, 2]


def test_another_study_is_refused(finished) -> None:
    other = replace(STUDY, divergence=replace(STUDY.divergence, seed=7))
    with pytest.raises(InvalidInputError, match=r"divergence.seed=0, this run has divergence.seed=7"):
        LocalExecutor().run(other, finished[0])
