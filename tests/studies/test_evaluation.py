"""An evaluation: every cell a pure function of the specification, every image attacked, seeds kept apart."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn
from vqshield.studies.specification import EvaluationSettings, cells

from vqshield import suites
from vqshield.data import ImageSet
from vqshield.errors import InvalidInputError
from vqshield.runs.records import Record
from vqshield.runs.target import Subject, load_subject
from vqshield.seeds import derived_seed
from vqshield.studies import evaluation as module
from vqshield.studies.evaluation import Evaluation
from vqshield.threats import threat

PRD, RANDDISC = "prd:codes=4", "randdisc:codes=3"
STE, IGNORANT, SOFT = "pgd:steps=2,eot=2", "pgd:steps=2,surrogate=none", "pgd:steps=2,surrogate=soft"
SETTINGS = EvaluationSettings(defenses=(PRD,), attacks=(STE, IGNORANT), eps=0.1, runs=3, selection=2, batch=2)


@pytest.fixture(scope="module")
def subject() -> Subject:
    """Five images of three classes, and a network of one layer."""
    source = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (5, 3, 8, 8), dtype=torch.uint8, generator=source)
    layer = nn.Linear(3 * 8 * 8, 3)
    layer.weight.data = torch.randn(layer.weight.shape, generator=source)
    classifier = nn.Sequential(nn.Flatten(), layer)
    labels = classifier(images.float() / 255).argmax(1)
    labels[4] = (labels[4] + 1) % 3  # one that is wrong already
    data = ImageSet("five", images, labels, ("a", "b", "c"))
    return Subject(data=data, classifier=classifier, name="layer", sha256="0", device=torch.device("cpu"))


def run(settings: EvaluationSettings, subject: Subject, folder: Path) -> list[Record]:
    evaluation = Evaluation(settings, subject, folder)
    evaluation.run()
    return evaluation.records.read()


def test_a_record_for_every_image_defense_and_attack(subject: Subject, tmp_path: Path) -> None:
    records = run(SETTINGS, subject, tmp_path)
    plan = [("none", "none", "none"), (PRD, "none", "none"), (PRD, STE, "eot"), (PRD, IGNORANT, "ignorant")]
    assert [(record.defense, record.attack, record.level, record.image) for record in records] == [
        (*entry, image) for chunk in ((0, 1), (2, 3), (4,)) for entry in plan for image in chunk
    ]
    for record in records:
        assert record.label == int(subject.data.labels[record.image])
        assert len(record.predictions) == 3
        if record.attack == "none":
            assert (record.distance, record.selected) == (0.0, None)
        else:  # the misclassified one is attacked too
            assert 0 < record.distance <= 0.1 + 1e-6
            assert 0 <= record.selected <= 2
    bare = [record for record in records if record.defense == "none"]
    assert [record.predictions[0] == record.label for record in bare] == [True] * 4 + [False]


def test_the_manifest_says_all_that_decides_the_records(subject: Subject, tmp_path: Path) -> None:
    run(SETTINGS, subject, tmp_path)
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert manifest["data"]["images"] == 5
    assert manifest["classifier"] == {"name": "layer", "sha256": "0"}
    assert manifest["defenses"][0]["settings"]["sigma"] == 4 / 255
    first = manifest["attacks"][0]["threats"][0]
    assert first["attack"] | {"kind": "PGD", "steps": 2, "momentum": 0.0} == first["attack"]
    assert (first["eot"], first["surrogate"]) == (2, {"kind": "StraightThrough"})
    chosen = {key: manifest[key] for key in ("norm", "eps", "runs", "selection", "seed", "batch")}
    assert chosen == {"norm": "linf", "eps": 0.1, "runs": 3, "selection": 2, "seed": 0, "batch": 2}
    assert {"vqshield", "torch", "threads", "device"} <= set(manifest["machine"])
    assert "seed" not in first["attack"], "every cell has its own"


class StoppedError(Exception):
    pass


@pytest.mark.parametrize("after", [1, 7, 23, 40])
def test_stopped_anywhere_it_ends_in_the_same_bytes(subject: Subject, tmp_path: Path, after: int) -> None:
    run(SETTINGS, subject, tmp_path / "unbroken")
    reports = 0

    def stop(*_: object) -> None:
        nonlocal reports
        reports += 1
        if reports == after:
            raise StoppedError

    with pytest.raises(StoppedError):
        Evaluation(SETTINGS, subject, tmp_path / "stopped", stop).run()
    whole = Evaluation(SETTINGS, subject, tmp_path / "stopped").records.read()
    assert len(whole) < 20
    run(SETTINGS, subject, tmp_path / "stopped")
    stopped, unbroken = ((tmp_path / name / "records.jsonl").read_bytes() for name in ("stopped", "unbroken"))
    assert stopped == unbroken
    assert not subject.classifier._forward_hooks


def test_a_cell_does_not_depend_on_the_others(subject: Subject, tmp_path: Path) -> None:
    alone = run(SETTINGS, subject, tmp_path / "alone")
    more = replace(SETTINGS, defenses=(RANDDISC, PRD), attacks=(SOFT, IGNORANT, STE))
    beside = {record.key: record for record in run(more, subject, tmp_path / "beside")}
    assert all(beside[record.key] == record for record in alone)


def test_another_seed_gives_other_draws(subject: Subject, tmp_path: Path) -> None:
    noisy = replace(SETTINGS, defenses=("prd:codes=4,sigma=1,tau=1",), runs=20)
    answers = [
        [record.predictions for record in run(replace(noisy, seed=seed), subject, tmp_path / str(number))]
        for number, seed in enumerate((0, 0, 1))
    ]
    assert answers[0] == answers[1] != answers[2]


def test_attack_selection_and_report_have_seeds_of_their_own(
    subject: Subject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seeds: list[int] = []

    def watched(original):
        def call(*arguments, seed=0):
            seeds.append(seed)
            return original(*arguments, seed=seed)

        return call

    evaluation = Evaluation(replace(SETTINGS, attacks=(STE,)), subject, tmp_path)
    monkeypatch.setattr(module, "defense", watched(module.defense))
    monkeypatch.setattr(module, "expand", watched(module.expand))
    evaluation.run()
    # In each of 3 chunks: bare natural 1, natural 1, attack 2 (its start, its draws), selection 1, report 1.
    assert len(seeds) == len(set(seeds)) == 3 * 6
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_derived_seeds_stay_what_they_are() -> None:
    assert derived_seed(0, "swrd", "pgd", 0, "report") == 8398005227096391699


def test_the_bare_classifier_can_be_attacked_as_a_baseline(subject: Subject, tmp_path: Path) -> None:
    records = run(replace(SETTINGS, defenses=("none",), attacks=(STE, SOFT)), subject, tmp_path)
    assert {(record.defense, record.attack) for record in records} == {
        ("none", attack) for attack in ("none", STE, SOFT)
    }
    assert all(len(set(record.predictions)) == 1 for record in records)
    natural, ste, _ = (
        sum(record.predictions[0] == record.label for record in records if record.attack == attack)
        for attack in ("none", STE, SOFT)
    )
    assert ste < natural


def test_a_suite_is_every_one_of_its_members(
    subject: Subject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def two(ball, seed):
        return [replace(threat(text, ball, seed=seed), name=f"two/{text}") for text in (IGNORANT, STE)]

    monkeypatch.setitem(suites._SUITES, "two", two)
    settings = replace(SETTINGS, attacks=("two", SOFT))
    records = run(settings, subject, tmp_path)
    assert list(dict.fromkeys(record.attack for record in records)) == [
        "none", f"two/{IGNORANT}", f"two/{STE}", SOFT
    ]  # fmt: skip
    with pytest.raises(InvalidInputError, match="a suite such as two takes none"):
        replace(SETTINGS, attacks=("two:steps=3",))


def test_progress_never_goes_back_and_ends_at_the_work(subject: Subject, tmp_path: Path) -> None:
    seen: list[int] = []
    evaluation = Evaluation(SETTINGS, subject, tmp_path, lambda _, done: seen.append(done))
    evaluation.run()
    assert seen == sorted(seen)
    assert seen[-1] == evaluation.work


def test_an_attack_that_ignores_the_defense_is_counted_once(subject: Subject, tmp_path: Path) -> None:
    settings = replace(SETTINGS, defenses=(PRD, RANDDISC, "none"))
    evaluation = Evaluation(settings, subject, tmp_path)
    draws, steps, averaged = 3 + 2, 2, 2  # report and selection; steps and eot of the attacks
    assert {(cell.defense, cell.attack): evaluation.cost(cell) / 2 for cell in evaluation.cells[:9]} == {
        ("none", "none"): 3,
        (PRD, "none"): 3,
        (PRD, STE): draws + steps * averaged,
        (PRD, IGNORANT): draws + steps,
        (RANDDISC, "none"): 3,
        (RANDDISC, STE): draws + steps * averaged,
        (RANDDISC, IGNORANT): draws,
        ("none", STE): draws + steps * averaged,
        ("none", IGNORANT): draws,
    }
    assert evaluation.work == sum(map(evaluation.cost, evaluation.cells[:9])) * 5 / 2, "of every chunk"


def test_cells_that_need_the_same_attack_say_so(subject: Subject, tmp_path: Path) -> None:
    settings = replace(SETTINGS, defenses=(PRD, RANDDISC, "none"))
    sharing = Evaluation(settings, subject, tmp_path, shared=tmp_path / "shared")
    needed = {(cell.defense, cell.attack, cell.images.start): sharing.common(cell) for cell in sharing.cells}
    assert {cell: need for cell, need in needed.items() if need is not None} == {
        **{(name, IGNORANT, start): (IGNORANT, start) for name in settings.defenses for start in (0, 2, 4)},
        **{("none", STE, start): (STE, start) for start in (0, 2, 4)},
    }
    alone = Evaluation(settings, subject, tmp_path)
    assert {alone.common(cell) for cell in alone.cells} == {None}, "no folder to find it in"


def test_cells_cover_every_image_once() -> None:
    specification = {"defenses": [{"name": "prd"}], "attacks": [], "data": {"images": 7}, "batch": 3}
    assert [(cell.defense, list(cell.images)) for cell in cells(specification)] == [
        (defense, images) for images in ([0, 1, 2], [3, 4, 5], [6]) for defense in ("none", "prd")
    ]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"runs": 0}, "runs=0 should be >= 1"),
        ({"selection": 0}, "selection=0 should be >= 1"),
        ({"batch": 0}, "batch=0 should be >= 1"),
        ({"seed": -1}, "seed=-1 should be from 0"),
        ({"eps": -0.1}, "eps=-0.1 should be from 0 to 1"),
        ({"norm": "l7"}, "norm='l7' is unknown; choose one of l2, linf"),
        ({"defenses": ()}, "no defense is given; give one of randdisc, prd, swrd, none"),
        ({"defenses": ("prd", "prd")}, "defense 'prd' is given twice"),
        ({"defenses": ("shield",)}, "defense='shield' is unknown; choose one of none, prd, randdisc, swrd"),
        ({"defenses": ("prd:colour=3",)}, "prd has no setting 'colour'; it has"),
        ({"defenses": ("prd:seed=3",)}, "would fix every draw"),
        ({"defenses": ("none:size=3",)}, "none takes none"),
        ({"attacks": ("hope",)}, "attack='hope' is unknown; choose one of adaptive-v1, .*pgd"),
        ({"attacks": ("pgd:luck=3",)}, "pgd has no setting 'luck'; it has surrogate, eot"),
        ({"attacks": ("pgd:steps=0",)}, "steps=0 should be >= 1"),
        ({"attacks": ("pgd", "pgd")}, "attack 'pgd' is given twice"),
    ],
)
def test_settings_that_cannot_work_are_named(change: dict, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        EvaluationSettings(**change)


def test_a_defense_too_large_for_the_images_is_refused_before_any_work(
    subject: Subject, tmp_path: Path
) -> None:
    with pytest.raises(InvalidInputError, match="size=9 should be at most"):
        Evaluation(replace(SETTINGS, defenses=("prd:size=9",)), subject, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_another_specification_is_refused(subject: Subject, tmp_path: Path) -> None:
    run(SETTINGS, subject, tmp_path)
    before = (tmp_path / "records.jsonl").read_bytes()
    with pytest.raises(InvalidInputError, match=r"seed=0, this run has seed=1"):
        run(replace(SETTINGS, seed=1), subject, tmp_path)
    fewer = replace(subject, data=subject.data.take(3))
    with pytest.raises(InvalidInputError, match=r"data.images=5, this run has data.images=3"):
        run(SETTINGS, fewer, tmp_path)
    assert (tmp_path / "records.jsonl").read_bytes() == before


def test_classifier_and_data_must_fit(subject: Subject) -> None:
    with pytest.raises(InvalidInputError, match="tells 3 classes apart, 'five' has 4"):
        replace(subject, data=replace(subject.data, classes=("a", "b", "c", "d")))
    with pytest.raises(InvalidInputError, match=r"takes no images of shape \(3, 4, 4\)"):
        replace(subject, data=replace(subject.data, images=subject.data.images[:, :, :4, :4]))


def test_the_bundled_subject_and_a_file() -> None:
    subject = load_subject(limit=3, device="cpu")
    assert (subject.name, len(subject.data), len(subject.sha256)) == ("small-cifar10", 3, 64)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"data": "cifar11"}, "data='cifar11' is unknown; choose one of cifar10, cifar10-sample"),
        ({"data": "cifar10"}, "needs the folder that holds its files"),
        ({"classifier": "no.file"}, "classifier='no.file' is no file; .* small-cifar10, the bundled one"),
        ({"limit": 0}, "limit=0 should be >= 1"),
        ({"device": "abacus"}, "device='abacus' cannot be used"),
    ],
)
def test_a_subject_that_is_not_there_is_named(change: dict, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        load_subject(**change)
