"""Attackers without the weights: every call counted, every cell a pure function of the study."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from vqshield.attacks import PGD, DiverseInputs, Linf
from vqshield.classifiers import Network, Normalised, build, load_classifier, save_classifier
from vqshield.core.errors import FileFormatError, InvalidInputError
from vqshield.core.seeds import derived_seed
from vqshield.ladders.black_box import BlackBoxAttack, BlackBoxRecord, BlackBoxStudy, transfers
from vqshield.runs.executors import LocalExecutor
from vqshield.runs.target import Target

PRD = "prd:codes=4,iterations=2"
SCORE = BlackBoxAttack(name="square", rung="score", attack="square")
FIVE = BlackBoxAttack(name="square:eot=2", rung="score", attack="square:eot=2")
DECISION = BlackBoxAttack(name="rays", rung="decision", attack="rays")


@pytest.fixture(scope="module")
def target() -> Target:
    """Three images of three classes, and a network of one layer."""
    source = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (3, 3, 8, 8), dtype=torch.uint8, generator=source).float() / 255
    layer = nn.Linear(3 * 8 * 8, 3)
    layer.weight.data = 0.1 * torch.randn(layer.weight.shape, generator=source)
    model = nn.Sequential(nn.Flatten(), layer).requires_grad_(False)
    return Target.in_memory(model, images, model(images).argmax(1))


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """Two tiny networks of another architecture, by file."""
    found = []
    for number in range(2):
        with torch.random.fork_rng():
            torch.manual_seed(number)
            network = build("small", classes=3, in_channels=3, widths=[4, 4], blocks=[1, 1])
        assert isinstance(network, Network)
        found.append(str(tmp_path_factory.mktemp("sources") / f"net{number}.safetensors"))
        save_classifier(found[-1], Normalised(network.eval(), mean=[0.5] * 3, std=[0.25] * 3))
    return tuple(found)


@pytest.fixture(scope="module")
def study(target: Target, sources: tuple[str, ...]) -> BlackBoxStudy:
    attacks = (*transfers(sources, "pgd:steps=2,momentum=1.0", 0.7), SCORE, FIVE, DECISION)
    behind = BlackBoxAttack(
        name="grey-box/pgd", rung="grey-box", attack="pgd:steps=2,eot=2", sources=sources[:1], behind=True
    )
    return BlackBoxStudy(
        target=target, defense=PRD, attacks=(*attacks, behind), calls=(30, 60), eps=0.05, runs=3, selection=2,
        batch=2,
    )  # fmt: skip


@pytest.fixture(scope="module")
def finished(study: BlackBoxStudy, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("remote")
    LocalExecutor().run(study, folder)
    return folder


def test_a_record_for_every_image_attack_and_number_of_calls(finished: Path, study: BlackBoxStudy) -> None:
    records = BlackBoxStudy.read(finished).records
    names = [
        "transfer/net0",
        "transfer/net1",
        "transfer/net0+net1",
        "square",
        "square:eot=2",
        "rays",
        "grey-box/pgd",
    ]
    assert [(each.attack, each.calls, each.image) for each in records] == [
        (name, calls, image)
        for chunk in ((0, 1), (2,))
        for name in names
        for calls in ((30, 60) if name in ("square", "square:eot=2", "rays") else (0,))
        for image in chunk
    ]
    for each in records:
        assert 0 <= each.used <= each.calls
        assert (each.used > 0) == (each.calls > 0)
        assert 0 < each.distance <= 0.05 + 1e-6
        assert len(each.predictions) == 3
    assert str(finished.parent) not in (finished / "manifest.json").read_text(), "no paths of this machine"


def test_chunks_do_not_depend_on_each_other_and_a_stopped_run_continues(
    finished: Path, study: BlackBoxStudy, tmp_path: Path
) -> None:
    whole = (finished / "records.jsonl").read_bytes()
    lines = whole.splitlines(keepends=True)
    (tmp_path / "manifest.json").write_bytes((finished / "manifest.json").read_bytes())
    (tmp_path / "records.jsonl").write_bytes(b"".join(lines[:9]) + lines[9][:20])  # killed in the middle
    LocalExecutor().run(study, tmp_path)
    assert (tmp_path / "records.jsonl").read_bytes() == whole


def test_a_transfer_is_found_on_the_source_alone(target: Target, sources: tuple[str, ...]) -> None:
    """The attack is PGD on the source, which sees images of other sizes."""
    (attack,) = transfers(sources[:1], "pgd:steps=2,momentum=1.0", 0.7)
    study = BlackBoxStudy(target=target, defense=PRD, attacks=(attack,), eps=0.05, runs=2, selection=2)
    cell = study.cells[0]
    images, labels = target.part(cell.images)
    seed = derived_seed(0, PRD, "transfer/net0", 0, "attack")
    source = DiverseInputs(load_classifier(sources[0]), probability=0.7, seed=seed)
    expected = PGD(ball=Linf(0.05), steps=2, momentum=1.0, seed=seed)(source, images, labels)
    [(found, used)] = study._found(attack, cell, images, labels)
    assert torch.equal(found, expected)
    assert used == [0, 0, 0]


def test_a_bare_deterministic_classifier_is_asked_once_a_query(target: Target) -> None:
    """Five draws of it would be five times the same answer."""
    bare = BlackBoxStudy(
        target=target, attacks=(SCORE, FIVE), calls=(40,), eps=0.05, runs=2, selection=2
    ).in_memory()
    one, two = ([r for r in bare.records if r.attack == name] for name in ("square", "square:eot=2"))
    assert [record.used for record in one] == [record.used for record in two]


def test_a_source_of_other_classes_and_an_attack_that_needs_gradients_are_refused(
    target: Target, sources: tuple[str, ...]
) -> None:
    ten = BlackBoxStudy(target=target, attacks=transfers(("small-cifar10",), "pgd:steps=1", 0.0))
    with pytest.raises(InvalidInputError, match="has 10 classes, 'in memory' has 3"):
        ten.in_memory()
    with pytest.raises(InvalidInputError, match="'pgd' needs more than answers; give square or rays"):
        BlackBoxStudy(target=target, attacks=(BlackBoxAttack(name="pgd", rung="score", attack="pgd"),))
    with pytest.raises(InvalidInputError, match="attack 'square' is given twice"):
        BlackBoxStudy(target=target, attacks=(SCORE, SCORE))


def test_records_that_cannot_be_are_refused(finished: Path, study: BlackBoxStudy) -> None:
    manifest, record = study.manifest, BlackBoxStudy.read(finished).records[0]
    assert BlackBoxStudy.problem(manifest, record) is None
    changes: list[tuple[dict[str, object], str]] = [
        ({"used": 7}, "used=7 should be from 0 to calls=0"),
        ({"distance": 0.2}, "distance=0.2"),
        ({"selected": 3}, "selected=3"),
        ({"predictions": (0,)}, "1 predictions"),
        ({"label": 9}, "class 9"),
    ]
    for change, words in changes:
        assert words in (BlackBoxStudy.problem(manifest, replace(record, **change)) or "")
    lines = (finished / "records.jsonl").read_text().splitlines()
    wrong = {**json.loads(lines[0]), "used": 7}
    assert BlackBoxRecord.parse(json.dumps(wrong).encode()).used == 7
    with pytest.raises(FileFormatError):
        study.folder(_copied(finished, json.dumps(wrong), lines[1:])).read()


def _copied(finished: Path, first: str, rest: list[str]) -> Path:
    folder = finished.parent / "changed"
    folder.mkdir(exist_ok=True)
    (folder / "manifest.json").write_bytes((finished / "manifest.json").read_bytes())
    (folder / "records.jsonl").write_text("\n".join([first, *rest]) + "\n")
    return folder
