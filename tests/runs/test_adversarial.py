"""Adversarial images of the bare classifier: found once, stored exactly, and found again where damaged."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from vqshield.studies.certification_settings import CertificationSettings
from vqshield.studies.specification import EvaluationSettings

from vqshield.attacks import PGD, ball
from vqshield.data import ImageSet
from vqshield.runs.adversarial import AdversarialStore, _write
from vqshield.runs.target import Subject
from vqshield.studies.certification import Certification
from vqshield.studies.evaluation import Evaluation

DEFENSES = ("prd:codes=4", "randdisc:codes=3", "swrd:codes=4")
IGNORANT, STE = "pgd:steps=2,surrogate=none", "pgd:steps=2"
SETTINGS = EvaluationSettings(defenses=DEFENSES, attacks=(IGNORANT,), eps=0.1, runs=3, batch=2)
SPECIFICATION = {"classifier": {"sha256": "c"}, "machine": {"torch": "2"}}
NATURAL = torch.rand(2, 3, 4, 4, generator=torch.Generator().manual_seed(0))
LABELS = torch.tensor([0, 2])
LINF = ball("linf", 0.1)


@pytest.fixture
def subject() -> Subject:
    """Five images of three classes, and a network of one layer."""
    source = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (5, 3, 8, 8), dtype=torch.uint8, generator=source)
    layer = nn.Linear(3 * 8 * 8, 3)
    layer.weight.data = torch.randn(layer.weight.shape, generator=source)
    layer.bias.data.zero_()
    classifier = nn.Sequential(nn.Flatten(), layer)
    labels = classifier(images.float() / 255).argmax(1)
    data = ImageSet("five", images, labels, ("a", "b", "c"))
    return Subject(data=data, classifier=classifier, name="layer", sha256="0", device=torch.device("cpu"))


@pytest.fixture
def attacks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The seeds of all attacks that were run."""
    seeds: list[int] = []
    original = PGD.run

    def counted(self: PGD, model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
        seeds.append(self.seed)
        return original(self, model, images, labels)

    monkeypatch.setattr(PGD, "run", counted)
    return seeds


def records(settings: EvaluationSettings, subject: Subject, folder: Path, **options: Path) -> bytes:
    Evaluation(settings, subject, folder, **options).run()
    return (folder / "records.jsonl").read_bytes()


class Finder:
    """Stands for an attack, and counts how often it is asked."""

    def __init__(self, found: Tensor) -> None:
        self.found, self.asked = found, 0

    def __call__(self) -> Tensor:
        self.asked += 1
        return self.found


def ask(store: AdversarialStore, find: Callable[[], Tensor], **change: object) -> Tensor:
    question: dict = {
        "natural": NATURAL, "labels": LABELS, "threat": {"name": "pgd"}, "ball": LINF, "seed": 7
    }  # fmt: skip
    return store.images(find, **{**question, **change})


def moved(by: float = 0.05) -> Tensor:
    return (NATURAL + by * torch.rand(NATURAL.shape, generator=torch.Generator().manual_seed(1))).clamp(0, 1)


def test_an_attack_that_ignores_the_defense_runs_once_for_all_defenses(
    subject: Subject, tmp_path: Path, attacks: list[int]
) -> None:
    records(replace(SETTINGS, defenses=(*DEFENSES, "none")), subject, tmp_path)
    assert len(attacks) == len(set(attacks)) == 3, "one for each chunk"


def test_an_attack_through_the_defense_runs_for_each(
    subject: Subject, tmp_path: Path, attacks: list[int]
) -> None:
    records(replace(SETTINGS, attacks=(STE,)), subject, tmp_path)
    assert len(attacks) == len(set(attacks)) == 3 * 3


def test_records_do_not_depend_on_the_store(
    subject: Subject, tmp_path: Path, attacks: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = replace(SETTINGS, attacks=(STE, IGNORANT))
    plain = records(settings, subject, tmp_path / "plain")
    first = records(settings, subject, tmp_path / "first", shared=tmp_path / "shared")
    attacks.clear()
    second = records(settings, subject, tmp_path / "second", shared=tmp_path / "shared")
    assert len(attacks) == 3 * 3, "those through a defense alone"
    monkeypatch.setattr(AdversarialStore, "images", lambda self, find, **_: find())
    without = records(settings, subject, tmp_path / "without")
    assert plain == first == second == without


def test_another_experiment_with_other_defenses_uses_the_same_images(
    subject: Subject, tmp_path: Path, attacks: list[int]
) -> None:
    records(replace(SETTINGS, defenses=DEFENSES[:1]), subject, tmp_path / "a", shared=tmp_path / "shared")
    attacks.clear()
    records(replace(SETTINGS, defenses=DEFENSES[1:]), subject, tmp_path / "b", shared=tmp_path / "shared")
    assert attacks == []
    records(replace(SETTINGS, seed=1), subject, tmp_path / "c", shared=tmp_path / "shared")
    assert len(attacks) == 3, "another seed is another attack"


def test_more_or_fewer_images_share_the_chunks_that_are_the_same(
    subject: Subject, tmp_path: Path, attacks: list[int]
) -> None:
    fewer = replace(subject, data=subject.data.take(3))  # chunks of 2 and 1 images, not of 2, 2 and 1
    records(SETTINGS, fewer, tmp_path / "fewer", shared=tmp_path / "shared")
    first = attacks.copy()
    attacks.clear()
    shared = records(SETTINGS, subject, tmp_path / "all", shared=tmp_path / "shared")
    assert len(attacks) == 2, "the first chunk is known"
    assert first[0] not in attacks
    assert first[1] == attacks[0], "the same seed, but more images"
    assert records(SETTINGS, subject, tmp_path / "alone") == shared


def test_certifications_of_more_images_share_their_chunks(
    subject: Subject, tmp_path: Path, attacks: list[int]
) -> None:
    settings = CertificationSettings(
        defense=DEFENSES[0], certificate="draws", attack=IGNORANT, eps=(0.1,), draws=5, batch=32
    )
    fewer = replace(subject, data=subject.data.take(2))
    Certification(settings, fewer, tmp_path / "fewer", shared=tmp_path / "shared").run()
    assert len(attacks) == 1
    Certification(settings, subject, tmp_path / "all", shared=tmp_path / "shared").run()
    assert len(attacks) == len(set(attacks)) == 3, "two chunks more"


def test_certifications_of_other_defenses_use_the_same_images(
    subject: Subject, tmp_path: Path, attacks: list[int]
) -> None:
    settings = CertificationSettings(
        defense=DEFENSES[0], certificate="draws", attack=IGNORANT, eps=(0.05, 0.2), draws=5, batch=32
    )
    Certification(settings, subject, tmp_path / "a", shared=tmp_path / "shared").run()
    assert len(attacks) == len(set(attacks)) == 2 * 3, "budgets and chunks"
    attacks.clear()
    other = replace(settings, defense="gaussian:sigma=0.1")
    Certification(other, subject, tmp_path / "b", shared=tmp_path / "shared").run()
    assert attacks == []
    Certification(other, subject, tmp_path / "alone").run()
    shared, alone = ((tmp_path / name / "records.jsonl").read_bytes() for name in ("b", "alone"))
    assert shared == alone


def test_images_come_back_bit_by_bit(tmp_path: Path) -> None:
    find = Finder(moved())
    for _ in range(2):
        assert torch.equal(ask(AdversarialStore(SPECIFICATION, tmp_path), find), find.found)
    assert find.asked == 1
    assert [path.suffix for path in tmp_path.iterdir()] == [".safetensors"], "nothing half-written beside it"


def test_memory_holds_the_chunk_that_is_worked_on(tmp_path: Path) -> None:
    store, find = AdversarialStore(SPECIFICATION), Finder(moved())
    for natural in (NATURAL, NATURAL.clone(), NATURAL.flip(0), NATURAL):
        ask(store, find, natural=natural)
    assert find.asked == 3


@pytest.mark.parametrize(
    "change",
    [
        {"threat": {"name": "pgd", "steps": 3}},
        {"ball": ball("linf", 0.2)},
        {"ball": ball("l2", 0.1)},
        {"seed": 8},
        {"natural": NATURAL.flip(0)},
        {"natural": NATURAL.view(2, 3, 2, 8)},
        {"labels": LABELS.flip(0)},
    ],
)
def test_another_question_is_another_file(tmp_path: Path, change: dict) -> None:
    find = Finder(NATURAL.clone())
    for question in ({}, change):
        ask(AdversarialStore(SPECIFICATION, tmp_path), find, **question)
    assert find.asked == len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("part", ["classifier", "machine"])
def test_another_subject_or_machine_is_another_file(tmp_path: Path, part: str) -> None:
    find = Finder(moved())
    for of in (SPECIFICATION, {**SPECIFICATION, part: {"sha256": "another"}}):
        ask(AdversarialStore(of, tmp_path), find)
    assert find.asked == 2


def rewritten(path: Path, images: Tensor) -> None:
    """A file whose checksum is right, but whose images are no attack's."""
    _write(path, images)


def flipped(path: Path) -> None:
    tensors = load_file(path)
    tensors["images"].view(torch.int32)[0, 0, 0, 0] ^= 1  # far too small to leave the ball
    save_file(tensors, path)


def outside() -> Tensor:
    found = moved()
    found[1, 2, 3, 3] = NATURAL[1, 2, 3, 3] + 0.2
    return found


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: os.truncate(path, path.stat().st_size - 5),
        lambda path: os.truncate(path, 3),
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(b"no safetensors at all"),
        lambda path: save_file({"pictures": NATURAL}, path),
        lambda path: save_file({"images": moved()}, path),
        flipped,
        lambda path: rewritten(path, moved()[:1]),
        lambda path: rewritten(path, moved().double()),
        lambda path: rewritten(path, outside()),
        lambda path: rewritten(path, moved() * torch.nan),
    ],
    ids=[
        "truncated", "a stump", "empty", "text", "other tensors", "no checksum", "a flipped bit",
        "fewer images", "other type", "outside the ball", "not a number",
    ],
)  # fmt: skip
def test_a_damaged_file_is_replaced(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    find = Finder(moved())
    ask(AdversarialStore(SPECIFICATION, tmp_path), find)
    (path,) = tmp_path.iterdir()
    whole = path.read_bytes()
    damage(path)
    assert path.read_bytes() != whole
    assert torch.equal(ask(AdversarialStore(SPECIFICATION, tmp_path), find), find.found)
    assert find.asked == 2
    assert path.read_bytes() == whole


def test_images_outside_the_pixels_range_are_not_taken(tmp_path: Path) -> None:
    natural = torch.full_like(NATURAL, 0.99)
    find = Finder(natural.clone())
    ask(AdversarialStore(SPECIFICATION, tmp_path), find, natural=natural)
    (path,) = tmp_path.iterdir()
    rewritten(path, natural + 0.05)
    ask(AdversarialStore(SPECIFICATION, tmp_path), find, natural=natural)
    assert find.asked == 2
