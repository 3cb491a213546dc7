"""An audit in one call: the same for a defense and its text, resumable, and never mixed with another one."""

import itertools
import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from conftest import noise_images
from torch import nn

import vqshield as vq
from vqshield.auditing import AuditSettings, read_audit, run_audit
from vqshield.core.errors import InvalidInputError

FEW = AuditSettings(runs=2, queries=2, directions=1, draws=4, probe="pgd:steps=1", rehearsal=True)
IMAGES, LABELS = noise_images(4, 1, 8, 8), torch.tensor([0, 1, 0, 1])
SETTINGS = {"attacks": ["pgd:steps=1,surrogate=none"], "settings": FEW}


def network(seed: int = 0) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 2)).eval()


def test_a_defense_and_its_text_are_judged_alike() -> None:
    text = run_audit(network(), "prd:size=3,codes=4", IMAGES, LABELS, **SETTINGS)
    made = run_audit(network(), vq.PRD(size=3, codes=4, seed=99), IMAGES, LABELS, **SETTINGS)
    assert text.audit == made.audit
    assert text.defense == "prd:size=3,codes=4"
    assert {"size=3", "codes=4"} <= set(made.defense.removeprefix("prd:").split(","))
    assert (text.data, text.classifier, text.norm, text.eps) == ("images", "model", "linf", 8 / 255)
    assert text.settings == FEW


def test_the_folder_holds_the_report_and_all_that_was_measured(tmp_path: Path) -> None:
    told: list[str] = []
    report = run_audit(
        network(), "prd:codes=4", IMAGES, LABELS, **SETTINGS, out=tmp_path / "new", progress=told.append
    )
    assert read_audit(tmp_path / "new" / "audit.json") == report
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == [
        "audit.json", "measured.jsonl", "times.jsonl",
    ]  # fmt: skip
    assert told[0] == "R5, the attacks given"


def test_held_out_images_are_part_of_what_is_judged(tmp_path: Path) -> None:
    """They stand among the figures, and a folder with other ones is another audit's."""
    chosen = {"defense": "prd:codes=4", **SETTINGS, "out": tmp_path}
    others = noise_images(3, 1, 8, 8, seed=5), torch.tensor([1, 0, 1])
    report = run_audit(network(), images=IMAGES, labels=LABELS, held_out=others, **chosen)
    assert "natural, held out" in report.flags[10].figures
    few = vq.audit(
        network(), IMAGES, LABELS, defense="prd:codes=4", attacks=SETTINGS["attacks"], settings=FEW,
        held_out=others,
    )  # fmt: skip
    assert few.flags[10].figures == report.flags[10].figures
    for changed in (None, (others[0], 1 - others[1])):
        with pytest.raises(InvalidInputError, match="holds what another audit has measured"):
            run_audit(network(), images=IMAGES, labels=LABELS, held_out=changed, **chosen)


@pytest.mark.parametrize(
    "changed",
    [
        {"model": network(1)}, {"images": 1 - IMAGES}, {"labels": 1 - LABELS}, {"defense": "prd:codes=5"},
        {"eps": 4 / 255}, {"norm": "l2"}, {"data": "others"},
        {"settings": AuditSettings(seed=1, rehearsal=True)},
    ],
    ids=lambda changed: next(iter(changed)),
)  # fmt: skip
def test_what_another_audit_measured_is_not_taken_for_ones_own(tmp_path: Path, changed: dict) -> None:
    given = {
        "model": network(), "defense": "prd:codes=4", "images": IMAGES, "labels": LABELS, **SETTINGS,
        "out": tmp_path,
    }  # fmt: skip
    run_audit(**given)
    with pytest.raises(InvalidInputError, match="holds what another audit has measured"):
        run_audit(**{**given, **changed})


def test_a_stopped_audit_is_resumed_and_ends_the_same(tmp_path: Path) -> None:
    whole = run_audit(network(), "prd:codes=4", IMAGES, LABELS, **SETTINGS, out=tmp_path / "whole")
    lines = (tmp_path / "whole" / "measured.jsonl").read_bytes().splitlines(keepends=True)
    for kept in range(len(lines)):
        folder = tmp_path / str(kept)
        folder.mkdir()
        (folder / "measured.jsonl").write_bytes(b"".join(lines[:kept]) + lines[kept][:9])
        assert (
            run_audit(network(), "prd:codes=4", IMAGES, LABELS, **SETTINGS, out=folder).audit == whole.audit
        )
        assert (folder / "measured.jsonl").read_bytes() == b"".join(lines)
        first, second = (
            json.loads((each / "audit.json").read_text()) for each in (folder, tmp_path / "whole")
        )
        assert {**first, "seconds": 0} == {**second, "seconds": 0}


def test_the_time_of_a_stopped_audit_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that moves a second whenever it is read: whatever is measured takes its time."""
    clock = itertools.count()
    monkeypatch.setattr("vqshield.auditing.run.time.perf_counter", lambda: float(next(clock)))
    given = {"out": tmp_path, **SETTINGS}

    def stop(part: str) -> None:
        if part == "R11":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_audit(network(), "prd:codes=4", IMAGES, LABELS, **given, progress=stop)
    times = (tmp_path / "times.jsonl").read_text().splitlines()
    before = len((tmp_path / "measured.jsonl").read_text().splitlines())
    assert len(times) == before > 2
    report = run_audit(network(), "prd:codes=4", IMAGES, LABELS, **given)
    measured = len((tmp_path / "measured.jsonl").read_text().splitlines())
    assert report.seconds == measured + 1, "a second for each entry, and one for the end"
    assert run_audit(network(), "prd:codes=4", IMAGES, LABELS, **given).seconds == report.seconds
    assert read_audit(tmp_path / "audit.json") == report


def test_too_few_images_are_refused_before_the_model_is_called(tmp_path: Path) -> None:
    def never(*_: object) -> None:
        raise AssertionError("the model was called")

    model = network()
    model.register_forward_pre_hook(never)
    strict = replace(FEW, rehearsal=None)
    images, labels = noise_images(49, 1, 8, 8), torch.arange(49) % 2
    for audit, given in (
        (run_audit, (model, "prd:codes=4", images, labels)),
        (partial(vq.audit, defense="prd:codes=4"), (model, images, labels)),
    ):
        with pytest.raises(InvalidInputError, match=r"49 images cannot pass an audit, since R2 needs 50"):
            audit(*given, attacks=["pgd:steps=1"], settings=strict, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("defense", "message"),
    [
        ("none", "leaves nothing to audit"),
        ("shield9", "defense='shield9' is unknown"),
        ("prd:seed=3", "seed=3 in 'prd:seed=3' would fix every draw"),
        ("prd:luck=3", "luck"),
    ],
)
def test_a_defense_that_cannot_be_audited_is_refused_before_anything_is_written(
    tmp_path: Path, defense: str, message: str
) -> None:
    with pytest.raises(InvalidInputError, match=message):
        run_audit(network(), defense, IMAGES, LABELS, **SETTINGS, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_something_that_is_no_defense_is_named() -> None:
    with pytest.raises(InvalidInputError, match=r"defense should be a Defense such as SWRD.*not object"):
        run_audit(torch.nn.Flatten(), object(), torch.rand(2, 1, 4, 4), torch.tensor([0, 1]))
