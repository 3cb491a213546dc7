"""A folder of adversarial images: found once, stored exactly, and found again where damaged."""

import os
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from bare_attacks import (
    ATTACK,
    DEFENSES,
    IGNORANT,
    LABELS,
    NATURAL,
    STE,
    Finder,
    count_attacks,
    moved,
    one_layer,
    records,
)
from vqshield.attacks import PGD, ball
from vqshield.attacks.threats import Threat
from vqshield.certification.study import Certification
from vqshield.core.display_names import NONE
from vqshield.evaluation.study import Evaluation
from vqshield.runs.adversarial import AdversarialStore
from vqshield.runs.executors import LocalExecutor, run_study
from vqshield.runs.executors.processes import ProcessesExecutor
from vqshield.runs.target import ClassifierId, Target
from vqshield_paper.batch_statistics import BatchEvaluation
from vqshield_paper.kl.fitting import MixtureSettings
from vqshield_paper.kl.measurement import DivergenceSettings
from vqshield_paper.kl.study import KLStudy
from vqshield_paper.shared_images import (
    SharedCertification,
    SharedEvaluation,
    SharedStore,
    SharingStudy,
    _write,
)

BUNDLED: dict[str, Any] = {"target": Target(limit=3, device="cpu")}
PRD: dict[str, Any] = {
    **BUNDLED,
    "defenses": ("prd:iterations=2",),
    "attacks": (IGNORANT,),
    "runs": 2,
    "batch": 2,
}
DRAWS: dict[str, Any] = {
    **BUNDLED,
    "defense": "prd:iterations=2",
    "attack": IGNORANT,
    "draws": 3,
    "n0": 2,
    "n": 4,
}
STUDIES: dict[str, SharingStudy[Any, Any, Any]] = {
    "evaluation": SharedEvaluation(**PRD),
    "batch statistics": BatchEvaluation(**PRD, batch_norm="batch:size=2"),
    "certification": SharedCertification(**DRAWS, batch=32),
    "kl": KLStudy(
        **BUNDLED,
        defenses=("randdisc:codes=2",),
        eps=(0.1,),
        attack=IGNORANT,
        images=2,
        divergence=DivergenceSettings(
            codebooks=10,
            label_codebooks=2,
            lines=2,
            samples=9,
            mixture=MixtureSettings(components=2, covariance="diag", iterations=2),
        ),
    ),
}
sharing = pytest.mark.parametrize("study", STUDIES.values(), ids=STUDIES)


@pytest.fixture(scope="module")
def study() -> SharedEvaluation:
    return SharedEvaluation(
        target=one_layer(), defenses=DEFENSES, attacks=(IGNORANT,), eps=0.1, runs=3, batch=2
    )


def first(study: SharedEvaluation, count: int) -> SharedEvaluation:
    return replace(study, target=replace(study.target, limit=count))


@pytest.fixture
def attacks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    return count_attacks(monkeypatch)


@pytest.fixture
def find(monkeypatch: pytest.MonkeyPatch) -> Finder:
    return Finder(monkeypatch)


def store(
    folder: Path, *, classifier: str = "c", source: str | None = None, machine: str = "2"
) -> SharedStore:
    of = ClassifierId(name="layer", sha256=classifier, source=source)
    return SharedStore(folder, classifier=of, machine={"torch": machine})


def ask(
    store: SharedStore, *, images: Tensor = NATURAL, labels: Tensor = LABELS, attack: PGD = ATTACK
) -> Tensor:
    threat = Threat(name="pgd", level="ignorant", attack=attack, surrogate=NONE)
    return store.bare(threat, nn.Identity(), images, labels)


@sharing
def test_the_shared_folder_is_used_and_holds_in_every_folder(
    study: SharingStudy[Any, Any, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shared = replace(study, shared=Path("shared"))
    assert shared.shared == tmp_path / "shared", "another process may stand in another folder"
    assert list(run_study(shared, None).records) == list(run_study(study, None).records)
    assert list((tmp_path / "shared").iterdir()) != []


@sharing
def test_a_study_with_another_shared_folder_is_another_one(
    study: SharingStudy[Any, Any, Any], tmp_path: Path
) -> None:
    """Workers keep the last study that they were given: it must not be taken for this one."""
    assert replace(study, shared=tmp_path) != study


@sharing
def test_a_study_travels_with_its_folder(study: SharingStudy[Any, Any, Any], tmp_path: Path) -> None:
    shared = replace(study, shared=tmp_path)
    arrived = pickle.loads(pickle.dumps(shared))
    assert arrived == shared
    assert type(arrived) is type(shared)
    assert (arrived.manifest, arrived.cells) == (study.manifest, study.cells)


@pytest.mark.parametrize(
    ("shared", "plain"),
    [
        (STUDIES["evaluation"], Evaluation(**PRD)),
        (STUDIES["certification"], Certification(**DRAWS, batch=32)),
    ],
    ids=["evaluation", "certification"],
)
def test_records_and_manifest_are_those_of_a_study_that_shares_nothing(
    shared: SharingStudy[Any, Any, Any], plain: Evaluation | Certification, tmp_path: Path
) -> None:
    LocalExecutor().run(plain, tmp_path / "plain")
    LocalExecutor().run(replace(shared, shared=tmp_path / "images"), tmp_path / "sharing")
    for name in ("records.jsonl", "manifest.json"):
        here, there = ((tmp_path / where / name).read_bytes() for where in ("plain", "sharing"))
        assert here == there != b""


def test_a_classifier_behind_http_is_attacked_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = replace(STUDIES["evaluation"], shared=tmp_path)
    monkeypatch.setattr(Target, "is_remote", True)
    assert type(study.store) is AdversarialStore, "it may answer differently tomorrow"


@pytest.mark.slow
@pytest.mark.usefixtures("quick_workers")
def test_several_processes_write_and_read_whole_files(tmp_path: Path) -> None:
    two = replace(STUDIES["evaluation"], defenses=("prd:iterations=2", "randdisc:codes=3"), batch=1)
    alone, shared = replace(two), replace(two, shared=tmp_path / "images")
    LocalExecutor().run(alone, tmp_path / "alone")
    ProcessesExecutor(workers=2).run(shared, tmp_path / "both")
    here, there = ((tmp_path / where / "records.jsonl").read_bytes() for where in ("alone", "both"))
    assert here == there != b""
    files = sorted((tmp_path / "images").iterdir())
    assert [path.suffix for path in files] == [".safetensors"] * 3, "one for each image"
    assert all(load_file(path)["images"].shape == (1, 3, 32, 32) for path in files)


def test_records_do_not_depend_on_the_folder(
    study: SharedEvaluation, tmp_path: Path, attacks: list[int]
) -> None:
    both = replace(study, attacks=(STE, IGNORANT))
    sharing = replace(both, shared=tmp_path / "shared")
    plain, first = records(both, tmp_path / "plain"), records(sharing, tmp_path / "first")
    attacks.clear()
    second = records(replace(sharing), tmp_path / "second")
    assert len(attacks) == 3 * 3, "those through a defense alone"
    assert plain == first == second


def test_another_study_with_other_defenses_uses_the_same_images(
    study: SharedEvaluation, tmp_path: Path, attacks: list[int]
) -> None:
    sharing = replace(study, shared=tmp_path / "shared")
    records(replace(sharing, defenses=DEFENSES[:1]), tmp_path / "a")
    attacks.clear()
    records(replace(sharing, defenses=DEFENSES[1:]), tmp_path / "b")
    assert attacks == []
    records(replace(sharing, seed=1), tmp_path / "c")
    assert len(attacks) == 3, "another seed is another attack"


def test_more_or_fewer_images_share_the_chunks_that_are_the_same(
    study: SharedEvaluation, tmp_path: Path, attacks: list[int]
) -> None:
    sharing = replace(study, shared=tmp_path / "shared")
    records(first(sharing, 3), tmp_path / "fewer")  # chunks of 2 and 1 images, not of 2, 2 and 1
    before = attacks.copy()
    attacks.clear()
    shared = records(sharing, tmp_path / "all")
    assert len(attacks) == 2, "the first chunk is known"
    assert before[0] not in attacks
    assert before[1] == attacks[0], "the same seed, but more images"
    assert records(study, tmp_path / "alone") == shared


def test_certifications_share_the_chunks_that_are_the_same(
    study: SharedEvaluation, tmp_path: Path, attacks: list[int]
) -> None:
    certification = SharedCertification(
        target=replace(study.target, limit=2), defense=DEFENSES[0], certificate="draws", attack=IGNORANT,
        eps=(0.05, 0.2), draws=5, batch=32, shared=tmp_path / "shared",
    )  # fmt: skip
    records(certification, tmp_path / "fewer")
    assert len(attacks) == 2, "budgets"
    records(replace(certification, target=study.target), tmp_path / "all")
    assert len(attacks) == len(set(attacks)) == 2 * 3, "two chunks more"
    attacks.clear()
    other = replace(certification, target=study.target, defense="gaussian:sigma=0.1")
    shared = records(other, tmp_path / "b")
    assert attacks == [], "another defense, the same images"
    assert records(replace(other, shared=None), tmp_path / "alone") == shared


def test_images_come_back_bit_by_bit(tmp_path: Path, find: Finder) -> None:
    for _ in range(2):
        assert torch.equal(ask(store(tmp_path)), find.found)
    assert find.asked == 1
    assert [path.suffix for path in tmp_path.iterdir()] == [".safetensors"], "nothing half-written next to it"


@pytest.mark.parametrize(
    "change",
    [
        {"attack": replace(ATTACK, steps=3)},
        {"attack": replace(ATTACK, ball=ball("linf", 0.2))},
        {"attack": replace(ATTACK, ball=ball("l2", 0.1))},
        {"attack": replace(ATTACK, seed=8)},
        {"images": NATURAL.flip(0)},
        {"images": NATURAL.view(2, 3, 2, 8)},
        {"labels": LABELS.flip(0)},
    ],
)
def test_another_question_is_another_file(tmp_path: Path, find: Finder, change: dict) -> None:
    for question in ({}, change):
        find.found = question.get("images", NATURAL).clone()
        ask(store(tmp_path), **question)
    assert find.asked == len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("change", [{"classifier": "another"}, {"source": "another"}, {"machine": "3"}])
def test_another_classifier_or_machine_is_another_file(tmp_path: Path, find: Finder, change: dict) -> None:
    ask(store(tmp_path))
    ask(store(tmp_path, **change))
    assert find.asked == 2


def test_an_attack_of_other_sources_is_run_again(
    tmp_path: Path, find: Finder, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask(store(tmp_path))
    monkeypatch.setattr("vqshield_paper.shared_images.sources_digest", lambda: "edited")
    ask(store(tmp_path))
    assert find.asked == 2


def rewritten(path: Path, images: Tensor) -> None:
    """A file with a right checksum and images that no attack could have found."""
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
def test_a_damaged_file_is_replaced(tmp_path: Path, find: Finder, damage: Callable[[Path], None]) -> None:
    ask(store(tmp_path))
    (path,) = tmp_path.iterdir()
    whole = path.read_bytes()
    damage(path)
    assert path.read_bytes() != whole
    assert torch.equal(ask(store(tmp_path)), find.found)
    assert find.asked == 2
    assert path.read_bytes() == whole


def test_images_outside_the_pixels_range_are_not_taken(tmp_path: Path, find: Finder) -> None:
    natural = torch.full_like(NATURAL, 0.99)
    find.found = natural.clone()
    ask(store(tmp_path), images=natural)
    (path,) = tmp_path.iterdir()
    rewritten(path, natural + 0.05)
    ask(store(tmp_path), images=natural)
    assert find.asked == 2
