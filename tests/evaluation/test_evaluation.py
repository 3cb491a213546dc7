"""An evaluation: every cell a pure function of the study, every image attacked, seeds kept apart."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from vqshield.attacks import suites
from vqshield.attacks.threats import Threat, threat
from vqshield.classifiers import small_cifar10, weights_digest
from vqshield.core.errors import InvalidInputError
from vqshield.core.seeds import derived_seed
from vqshield.core.serialization import to_plain
from vqshield.data import sample
from vqshield.defended import defend
from vqshield.evaluation import study as module
from vqshield.evaluation.records import EvaluationRecord
from vqshield.evaluation.study import Evaluation, evaluate
from vqshield.evaluation.summary import EvaluationSummary
from vqshield.quantization import kernels as clustering
from vqshield.runs import attack_study as base
from vqshield.runs.executors import LocalExecutor
from vqshield.runs.target import Target

PRD, RANDDISC = "prd:codes=4", "randdisc:codes=3"
STE, IGNORANT, SOFT = "pgd:steps=2,eot=2", "pgd:steps=2,surrogate=none", "pgd:steps=2,surrogate=soft"


@pytest.fixture(scope="module")
def target() -> Target:
    """Five images of three classes, and a network of one layer."""
    source = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (5, 3, 8, 8), dtype=torch.uint8, generator=source).float() / 255
    layer = nn.Linear(3 * 8 * 8, 3)
    layer.weight.data = torch.randn(layer.weight.shape, generator=source)
    model = nn.Sequential(nn.Flatten(), layer)
    labels = model(images).argmax(1)
    labels[4] = (labels[4] + 1) % 3  # one that is wrong already
    return Target.in_memory(model, images, labels)


@pytest.fixture(scope="module")
def study(target: Target) -> Evaluation:
    return Evaluation(
        target=target, defenses=(PRD,), attacks=(STE, IGNORANT), eps=0.1, runs=3, selection=2, batch=2
    )


@pytest.fixture(scope="module")
def finished(study: Evaluation, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("evaluation")
    LocalExecutor().run(study, folder)
    return folder


def run(study: Evaluation) -> list[EvaluationRecord]:
    return list(study.in_memory().records)


def test_a_record_for_every_image_defense_and_attack(finished: Path, target: Target) -> None:
    records = Evaluation.read(finished).records
    plan = [("none", "none", "none"), (PRD, "none", "none"), (PRD, STE, "eot"), (PRD, IGNORANT, "ignorant")]
    assert [(record.defense, record.attack, record.level, record.image) for record in records] == [
        (*entry, image) for chunk in ((0, 1), (2, 3), (4,)) for entry in plan for image in chunk
    ]
    for record in records:
        assert record.label == int(target.images.labels[record.image])
        assert len(record.predictions) == 3
        if record.attack == "none":
            assert (record.distance, record.selected) == (0.0, None)
        else:  # the misclassified one is attacked too
            assert 0 < record.distance <= 0.1 + 1e-6
            assert 0 <= record.selected <= 2
    bare = [record for record in records if record.defense == "none"]
    assert [record.predictions[0] == record.label for record in bare] == [True] * 4 + [False]


def test_the_manifest_says_all_that_decides_the_records(finished: Path, target: Target) -> None:
    manifest = json.loads((finished / "manifest.json").read_text())
    assert manifest["data"]["images"] == 5
    answers = manifest["classifier"].pop("answers")
    assert len(answers) == 64, "weights alone do not say what a program does with them"
    assert manifest["classifier"] == {"name": "Sequential, in memory", "sha256": weights_digest(target.model)}
    assert manifest["code"]["kernels"] == [clustering.kernel_name("auto")]
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
def test_stopped_anywhere_it_ends_in_the_same_bytes(
    finished: Path, study: Evaluation, tmp_path: Path, after: int
) -> None:
    told = 0

    def stop(*_: object) -> None:
        nonlocal told
        told += 1
        if told == after:
            raise StoppedError

    with pytest.raises(StoppedError):
        LocalExecutor().run(study, tmp_path, progress=stop)
    assert len(Evaluation.read(tmp_path).records) < 20
    LocalExecutor().run(study, tmp_path)
    assert (tmp_path / "records.jsonl").read_bytes() == (finished / "records.jsonl").read_bytes()
    assert not study.target.model._forward_hooks


def test_a_cell_does_not_depend_on_the_others(finished: Path, study: Evaluation) -> None:
    more = replace(study, defenses=(RANDDISC, PRD), attacks=(SOFT, IGNORANT, STE))
    beside = {record.key: record for record in run(more)}
    assert all(beside[record.key] == record for record in Evaluation.read(finished).records)


def test_another_seed_gives_other_draws(study: Evaluation) -> None:
    noisy = replace(study, defenses=("prd:codes=4,sigma=1,tau=1",), attacks=(STE,), runs=20)
    answers = [[record.predictions for record in run(replace(noisy, seed=seed))] for seed in (0, 0, 1)]
    assert answers[0] == answers[1] != answers[2]


def test_attack_selection_and_report_have_seeds_of_their_own(
    study: Evaluation, monkeypatch: pytest.MonkeyPatch
) -> None:
    seeds: list[int] = []

    def watched(original):
        def call(*arguments, seed=0, **others):
            seeds.append(seed)
            return original(*arguments, seed=seed, **others)

        return call

    chosen = replace(study, attacks=(STE,))
    assert chosen.work > 0  # all that is looked up once
    for room in (module, base):
        monkeypatch.setattr(room, "defense_from", watched(room.defense_from))
    monkeypatch.setattr(module, "expand", watched(module.expand))
    run(chosen)
    # In each of 3 chunks: bare natural 1, natural 1, attack 2 (its start, its draws), selection 1, report 1.
    assert len(seeds) == len(set(seeds)) == 3 * 6
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_derived_seeds_stay_what_they_are() -> None:
    assert derived_seed(0, "swrd", "pgd", 0, "report") == 8398005227096391699


def test_the_bare_classifier_can_be_attacked_as_a_baseline(study: Evaluation) -> None:
    records = run(replace(study, defenses=("none",), attacks=(STE, SOFT)))
    assert {(record.defense, record.attack) for record in records} == {
        ("none", attack) for attack in ("none", STE, SOFT)
    }
    assert all(len(set(record.predictions)) == 1 for record in records)
    natural, ste, _ = (
        sum(record.predictions[0] == record.label for record in records if record.attack == attack)
        for attack in ("none", STE, SOFT)
    )
    assert ste < natural


def test_a_suite_is_every_one_of_its_members(study: Evaluation, monkeypatch: pytest.MonkeyPatch) -> None:
    def two(ball, seed):
        return [replace(threat(text, ball, seed=seed), name=f"two/{text}") for text in (IGNORANT, STE)]

    monkeypatch.setitem(suites._SUITES, "two", two)
    records = run(replace(study, attacks=("two", SOFT)))
    assert list(dict.fromkeys(record.attack for record in records)) == [
        "none", f"two/{IGNORANT}", f"two/{STE}", SOFT
    ]  # fmt: skip
    with pytest.raises(InvalidInputError, match="a suite such as two takes none"):
        replace(study, attacks=("two:steps=3",))


def test_progress_never_goes_back_and_ends_at_the_work(study: Evaluation) -> None:
    seen: list[tuple[str, int, int]] = []
    study.in_memory(lambda *said: seen.append(said))
    done = [each for _, each, _ in seen]
    assert done == sorted(done)
    assert seen[-1] == (f"{PRD}, {IGNORANT}", study.work, study.work)
    assert len(seen) > len(study.cells), "inside cells, too"


def test_an_attack_that_ignores_the_defense_is_counted_once(study: Evaluation) -> None:
    evaluation = replace(study, defenses=(PRD, RANDDISC, "none"))
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


def test_cells_cover_every_image_once(study: Evaluation) -> None:
    manifest = replace(study, attacks=(), batch=3).manifest
    seven = replace(manifest, data=replace(manifest.data, images=7))
    assert [(cell.defense, list(cell.images)) for cell in Evaluation.cells_of(seven)] == [
        (defense, images) for images in ([0, 1, 2], [3, 4, 5], [6]) for defense in ("none", PRD)
    ]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"runs": 0}, "runs=0 should be >= 1"),
        ({"selection": 0}, "selection=0 should be >= 1"),
        ({"batch": 0}, "batch=0 should be >= 1"),
        ({"seed": -1}, "seed=-1 should be from 0"),
        ({"eps": -0.1}, "eps=-0.1 should be from 0 to 1"),
        ({"norm": "l7"}, "norm='l7' is unknown; choose one of l1, l2, linf"),
        ({"defenses": ()}, "no defense is given; give one of randdisc, prd, swrd, none"),
        ({"defenses": ("prd", "prd")}, "defense 'prd' is given twice"),
        ({"defenses": ("shield",)}, "defense='shield' is unknown; choose one of .*none, prd, randdisc"),
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
        Evaluation(**change)


def test_a_defense_too_large_for_the_images_is_refused_before_any_work(
    study: Evaluation, tmp_path: Path
) -> None:
    with pytest.raises(InvalidInputError, match="size=9 should be at most"):
        LocalExecutor().run(replace(study, defenses=("prd:size=9",)), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_classifier_that_does_not_fit_is_refused_before_any_work(tmp_path: Path) -> None:
    missing = Evaluation(target=Target(classifier="no.file"))
    with pytest.raises(InvalidInputError, match=r"no\.file' is not a file"):
        LocalExecutor().run(missing, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_another_study_is_refused(finished: Path, study: Evaluation) -> None:
    before = (finished / "records.jsonl").read_bytes()
    with pytest.raises(InvalidInputError, match=r"seed=0, this run has seed=1"):
        LocalExecutor().run(replace(study, seed=1), finished)
    fewer = replace(study, target=replace(study.target, limit=3))
    with pytest.raises(InvalidInputError, match=r"data.images=5, this run has data.images=3"):
        LocalExecutor().run(fewer, finished)
    assert (finished / "records.jsonl").read_bytes() == before


ASKED = {"attacks": [STE, IGNORANT], "eps": 0.1, "samples": 2, "batch": 2, "limit": 3}


@pytest.fixture(scope="module")
def by_names() -> tuple:
    return timeless(evaluate(defense=PRD, **ASKED, device="cpu").rows)


def timeless(rows: tuple) -> tuple:
    return tuple(replace(row, seconds=None) for row in rows)


def test_one_call_gives_the_rows_of_every_attack(by_names: tuple) -> None:
    assert [(row.defense, row.attack, row.n, row.runs) for row in by_names] == [
        (*each, 3, 2)
        for each in [("none", "none"), (PRD, "none"), (PRD, STE), (PRD, IGNORANT), (PRD, "adaptive")]
    ]


def test_names_tensors_and_defended_models_give_equal_rows(by_names: tuple) -> None:
    data, model = sample(4), small_cifar10()
    images, labels = data.floats(), data.labels
    for classifier, given in {
        "small-cifar10": (images, labels.int()),
        model: (images, labels),
        small_cifar10(): ("cifar10-sample",),
    }.items():
        assert timeless(evaluate(classifier, *given, defense=PRD, **ASKED).rows) == by_names
    shielded = defend(model, "prd", codes=4, seed=5, surrogate="soft")
    assert timeless(evaluate(shielded, images, labels, **ASKED).rows) == by_names, "its defense, other draws"
    bare = evaluate(model, images, labels, **ASKED, defense="none")
    assert {row.defense for row in bare.rows} == {"none"}, "the defense that is asked for"
    assert {row.defense for row in evaluate(model, images, labels, limit=1, samples=1).rows} == {"none"}


def test_with_a_folder_it_gives_the_same_and_continues(
    by_names: tuple, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Watched(LocalExecutor):
        def manifest(self, study):
            used.append(type(study).__name__)
            return super().manifest(study)

    used: list[str] = []
    found = evaluate(defense=(PRD,), **ASKED, device="cpu", out=tmp_path, executor=Watched())
    assert timeless(found.rows) == by_names
    assert all(row.seconds is not None for row in found.rows)
    assert used == ["Evaluation"]
    assert json.loads((tmp_path / "manifest.json").read_text())["batch"] == 2
    monkeypatch.setattr(Evaluation, "measure", lambda *_: pytest.fail("measures again"))
    assert evaluate(defense=PRD, **ASKED, device="cpu", out=str(tmp_path)) == found


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"labels": torch.zeros(1)},
            "labels are given with the data set 'cifar10-sample', which has its own",
        ),
        ({"images": torch.rand(1, 3, 32, 32)}, "labels are missing; give one for each image"),
        ({"executor": LocalExecutor()}, "an executor is given without a folder"),
        ({"defense": "shield"}, "defense='shield' is unknown"),
        ({"model": "no.file"}, "is not a file"),
    ],
)
def test_what_cannot_be_evaluated_is_named(given: dict, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        evaluate(**{"limit": 1, **given})


FAST = "adaptive-v1-quick:precision=bf16"


@pytest.fixture(scope="module")
def fast_study(target: Target) -> Evaluation:
    return Evaluation(target=target, defenses=(PRD,), attacks=(FAST,), eps=0.3, runs=2, batch=5)


def test_members_of_a_fast_suite_are_tried_in_turn(
    fast_study: Evaluation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each on those alone that the one before left; the others count for it as they did before."""
    tried: list[tuple[str, int]] = []
    call = Threat.__call__

    def watched(self, classifier, defense, images, labels):
        tried.append((self.name, len(images)))
        return call(self, classifier, defense, images, labels)

    monkeypatch.setattr(Threat, "__call__", watched)
    records = run(fast_study)
    first, second = f"{FAST}/soft-margin", f"{FAST}/ste-margin"
    one, two = ([each for each in records if each.attack == name] for name in (first, second))
    assert [each.image for each in one] == [each.image for each in two] == list(range(5))
    lost = [each.image for each in one if each.selected == 0]
    assert lost, "a test needs some that are lost"
    assert tried == [(first, 5), (second, 5 - len(lost))][: 1 + (len(lost) < 5)]
    for image in lost:
        assert replace(two[image], attack=first, level=one[image].level) == one[image]
    assert {each.level for each in two} == {"eot"}


def test_a_fast_suite_is_one_cell_and_says_so_in_its_manifest(fast_study: Evaluation) -> None:
    cells = [cell for cell in fast_study.cells if cell.attack != "none"]
    assert [len(cell.keys) for cell in cells] == [10]
    usual = replace(fast_study, attacks=("adaptive-v1-quick",))
    assert [len(cell.keys) for cell in usual.cells if cell.attack != "none"] == [5, 5]
    assert [each.precision for each in fast_study.manifest.threats] == ["bf16", "bf16"]
    assert "precision" not in json.dumps(to_plain(usual.manifest))
    assert fast_study.cost(cells[0]) == usual.work - sum(
        usual.cost(cell) for cell in usual.cells if cell.attack == "none"
    )


def test_a_fast_suite_that_was_stopped_continues(fast_study: Evaluation, tmp_path: Path) -> None:
    study = replace(fast_study, batch=3)
    LocalExecutor().run(study, tmp_path)
    lines = (tmp_path / "records.jsonl").read_bytes()
    (tmp_path / "records.jsonl").write_bytes(lines[: len(lines) // 2])
    assert not EvaluationSummary.of(Evaluation.read(tmp_path)).complete
    LocalExecutor().run(study, tmp_path)
    assert (tmp_path / "records.jsonl").read_bytes() == lines
    summary = EvaluationSummary.of(Evaluation.read(tmp_path))
    assert summary.complete
    row = summary.row(PRD, FAST)
    assert row is not None
    assert row.n == 5
