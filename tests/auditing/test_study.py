"""An audit as a study: the same for a defense and its text, resumable, and never mixed with another one."""

import itertools
import json
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from conftest import noise_images
from torch import nn

import vqshield as vq
from vqshield.auditing import AuditSettings, read_audit
from vqshield.auditing.study import AuditStudy
from vqshield.core.errors import InvalidInputError
from vqshield.runs.executors import LocalExecutor

FEW = AuditSettings(runs=2, queries=2, directions=1, draws=4, probe="pgd:steps=1", rehearsal=True)
IMAGES, LABELS = noise_images(4, 1, 8, 8), torch.tensor([0, 1, 0, 1])
SETTINGS = {"attacks": ["pgd:steps=1,surrogate=none"], "settings": FEW}


def network(seed: int = 0) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 2)).eval()


def audit(model: nn.Module | None = None, defense: object = "prd:codes=4", **given: object):
    images, labels = given.pop("images", IMAGES), given.pop("labels", LABELS)
    return vq.audit(model or network(), images, labels, defense=defense, **{**SETTINGS, **given})


def test_a_defense_and_its_text_are_judged_alike() -> None:
    text = audit(defense="prd:size=3,codes=4")
    made = audit(defense=vq.PRD(size=3, codes=4, seed=99))
    assert text.audit == made.audit
    assert text.defense == "prd:size=3,codes=4"
    assert {"size=3", "codes=4"} <= set(made.defense.removeprefix("prd:").split(","))
    assert (text.data, text.classifier) == ("in memory", "Sequential, in memory")
    assert (text.norm, text.eps) == ("linf", 8 / 255)
    assert text.settings == FEW


def test_the_folder_holds_the_report_and_all_that_was_measured(tmp_path: Path) -> None:
    told: list[str] = []
    report = audit(out=tmp_path / "new", progress=told.append)
    assert read_audit(tmp_path / "new" / "audit.json") == report
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == [
        ".lock", "audit.json", "manifest.json", "notes.jsonl", "records.jsonl", "times.jsonl",
    ]  # fmt: skip
    assert told[0] == "R5, the attacks given"
    held = AuditStudy.read(tmp_path / "new")
    assert held.manifest.settings == FEW
    assert held.records[0].report == report.plain()


def test_held_out_images_are_part_of_what_is_judged(tmp_path: Path) -> None:
    """They stand among the figures, and a folder with other ones is another audit's."""
    others = noise_images(3, 1, 8, 8, seed=5), torch.tensor([1, 0, 1])
    report = audit(held_out=others, out=tmp_path)
    assert "natural, held out" in report.flags[10].figures
    elsewhere = audit(held_out=others, out=tmp_path / "executor", executor=LocalExecutor())
    assert elsewhere.flags[10].figures == report.flags[10].figures
    for changed in (None, (others[0], 1 - others[1])):
        with pytest.raises(InvalidInputError, match=r"holds records made with held_out\."):
            audit(held_out=changed, out=tmp_path)


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"model": network(1)}, "classifier.sha256"),
        ({"images": 1 - IMAGES}, "data.sha256"),
        ({"labels": 1 - LABELS}, "data.sha256"),
        ({"defense": "prd:codes=5"}, "defense.name"),
        ({"eps": 4 / 255}, "eps"),
        ({"norm": "l2"}, "norm"),
        ({"settings": AuditSettings(rehearsal=True)}, "settings.runs"),
        ({"seed": 1}, "settings.seed"),
    ],
    ids=lambda value: value if isinstance(value, str) else next(iter(value)),
)
def test_what_another_audit_measured_is_not_taken_for_ones_own(
    tmp_path: Path, changed: dict, named: str
) -> None:
    audit(out=tmp_path)
    with pytest.raises(InvalidInputError, match=f"holds records made with {named}="):
        audit(**changed, out=tmp_path)


def test_an_audit_of_an_earlier_version_is_not_overwritten(tmp_path: Path) -> None:
    """It has no manifest that says of what it is."""
    (tmp_path / "audit.json").write_text("{}")
    with pytest.raises(InvalidInputError, match=r"holds a audit\.json but no manifest\.json"):
        audit(out=tmp_path)
    assert (tmp_path / "audit.json").read_text() == "{}"


def noted(folder: Path) -> list[tuple[str, object]]:
    lines = (folder / "notes.jsonl").read_text().splitlines()
    return [(key, note["value"]) for key, note in map(json.loads, lines)]


def test_a_stopped_audit_is_resumed_and_ends_the_same(tmp_path: Path) -> None:
    whole = audit(out=tmp_path / "whole")
    lines = (tmp_path / "whole" / "notes.jsonl").read_bytes().splitlines(keepends=True)
    for kept in range(len(lines)):
        folder = tmp_path / str(kept)
        folder.mkdir()
        shutil.copy(tmp_path / "whole" / "manifest.json", folder)
        (folder / "notes.jsonl").write_bytes(b"".join(lines[:kept]) + lines[kept][:9])
        assert audit(out=folder).audit == whole.audit
        assert noted(folder) == noted(tmp_path / "whole")
        first, second = (
            json.loads((each / "audit.json").read_text()) for each in (folder, tmp_path / "whole")
        )
        assert {**first, "seconds": 0} == {**second, "seconds": 0}


def test_the_time_of_a_stopped_audit_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that moves a second whenever it is read: whatever is measured takes its time."""
    clock = itertools.count()
    monkeypatch.setattr("vqshield.runs.notes.time", SimpleNamespace(perf_counter=lambda: float(next(clock))))

    def stop(part: str) -> None:
        if part == "R11":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        audit(out=tmp_path, progress=stop)
    before = len(noted(tmp_path))
    assert before > 2
    report = audit(out=tmp_path)
    assert len(noted(tmp_path)) > before
    assert report.seconds == len(noted(tmp_path)) + 1, "a second for each note, and one for the end"
    assert audit(out=tmp_path).seconds == report.seconds
    assert read_audit(tmp_path / "audit.json") == report


def test_too_few_images_are_refused_before_the_model_is_called(tmp_path: Path) -> None:
    def never(*_: object) -> None:
        raise AssertionError("the model was called")

    model = network()
    model.register_forward_pre_hook(never)
    images, labels = noise_images(49, 1, 8, 8), torch.arange(49) % 2
    with pytest.raises(InvalidInputError, match=r"49 images cannot pass an audit, since R2 needs 50"):
        audit(
            model,
            images=images,
            labels=labels,
            settings=replace(FEW, rehearsal=None),
            out=tmp_path / "out",
        )
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"defense": "shield9"}, "defense='shield9' is unknown"),
        ({"defense": "prd:seed=3"}, "seed=3 in 'prd:seed=3' would fix every draw"),
        ({"defense": "prd:luck=3"}, "luck"),
        ({"defense": object()}, r"defense should be .*, not object"),
        ({"attacks": []}, "attacks should name at least one threat or suite, not none"),
        ({"held_out": (IMAGES[0], LABELS)}, "should have 4 dimensions"),
    ],
    ids=["unknown", "seeded", "unknown setting", "wrong type", "no attacks", "held out"],
)
def test_what_cannot_be_audited_is_refused_before_anything_is_written(
    tmp_path: Path, changed: dict, message: str
) -> None:
    with pytest.raises(InvalidInputError, match=message):
        audit(**changed, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()
