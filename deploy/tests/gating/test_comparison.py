"""Finished runs are compared image by image; runs of other images, and unfinished ones, are refused."""

import json
import shutil
from pathlib import Path

import pytest
import torch

import vqshield as vq
from vqshield.auditing import AuditSettings
from vqshield.core.errors import FileFormatError, InvalidInputError
from vqshield.ladders.settings import LadderSettings
from vqshield_deploy.gating.comparison import compare
from vqshield_deploy.gating.finished import read_run

PGD = "pgd:steps=1,surrogate=none"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Evaluations of the same eight images behind two defenses, of other images, and behind several."""
    home = tmp_path_factory.mktemp("runs")
    common = {"attacks": PGD, "samples": 3}
    vq.evaluate(defense="prd", limit=8, out=home / "prd", **common)
    vq.evaluate(defense="swrd", limit=8, out=home / "swrd", **common)
    vq.evaluate(defense="prd", limit=6, out=home / "fewer", **common)
    vq.evaluate(defense=["prd", "swrd"], limit=8, out=home / "both", **common)
    vq.evaluate(limit=8, samples=1, out=home / "bare")
    return home


def test_the_samples_of_a_run_are_those_of_its_summary(runs: Path) -> None:
    found = read_run(runs / "prd")
    summary = json.loads((runs / "both" / "manifest.json").read_text())
    assert summary["data"]["sha256"] == found.data.sha256
    measured = vq.evaluate(defense="prd", attacks=PGD, samples=3, limit=8)
    for (subject, attack), shares in found.results.items():
        row = measured.row("none" if subject == "bare" else "prd", "none" if attack == "clean" else attack)
        assert row is not None
        assert (shares.accuracy.mean, shares.accuracy.n) == (pytest.approx(row.mean), row.n)
        assert shares.accuracy.standard_error == pytest.approx(row.standard_error)
    assert set(found.results) == {
        ("bare", "clean"),
        *(("model", each) for each in ("clean", PGD, "adaptive")),
    }


def test_two_defenses_are_compared_with_each_other(runs: Path) -> None:
    found = compare(runs / "prd", runs / "swrd")
    assert [(row.subject, row.attack) for row in found.rows] == [
        ("bare", "clean"), ("model", "clean"), ("model", PGD), ("model", "adaptive"),
    ]  # fmt: skip
    first, second = read_run(runs / "prd"), read_run(runs / "swrd")
    for row in found.rows:
        shares = [run.results[row.subject, row.attack] for run in (first, second)]
        before, after = (torch.tensor(each.right) / each.runs for each in shares)
        assert row.change == pytest.approx(float((after - before).mean()), abs=1e-6)
        assert row.standard_error == pytest.approx(float((after - before).std() / 8**0.5), abs=1e-6)
    assert "defenses.0.name" in found.differing
    assert found.differing["defenses.0.name"] == "prd → swrd"
    assert not [name for name in found.differing if name.startswith(("data", "machine", "attacks"))]
    assert found.unmatched == ()


def test_a_run_does_not_differ_from_itself(runs: Path) -> None:
    found = compare(runs / "prd", runs / "prd")
    assert found.differing == {}
    assert {(row.change, row.p_value) for row in found.rows} == {(0.0, 1.0)}


def test_what_only_one_run_has_is_said(runs: Path) -> None:
    found = compare(runs / "bare", runs / "prd")
    assert [row.attack for row in found.rows] == ["clean"]
    assert f"bare of bare: only in {runs / 'prd'}" not in found.unmatched
    assert f"{PGD} of model: only in {runs / 'prd'}" in found.unmatched
    assert any(note.startswith("Not compared") for note in found.notes)


def test_other_images_are_refused(runs: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"8 images of cifar10-sample.*6 images.*same images"):
        compare(runs / "prd", runs / "fewer")


def test_no_common_result_is_refused_with_the_results(runs: Path, tmp_path: Path) -> None:
    vq.certify_l1(defense="splitting:scale=0.05", limit=8, out=tmp_path / "l1")
    with pytest.raises(InvalidInputError, match=r"is a run of evaluate.*one of certify"):
        compare(runs / "prd", tmp_path / "l1")
    assert compare(tmp_path / "l1", tmp_path / "l1", radii=(0.0, 0.02)).rows[1].attack == "certified@0.02"


@pytest.mark.parametrize("kind", ["unfinished", "missing", "other", "broken"])
def test_a_folder_without_a_finished_run_is_refused(kind: str, runs: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    if kind != "missing":
        shutil.copytree(runs / "prd", folder)
    records = folder / "records.jsonl"
    if kind == "unfinished":
        records.write_bytes(b"".join(records.read_bytes().splitlines(keepends=True)[:8]))
    elif kind == "other":
        (folder / "manifest.json").write_text('{"seed": 1}')
    elif kind == "broken":
        records.write_bytes(b"{}\n" + records.read_bytes())
    message = {
        "unfinished": "is not finished: it has 8 of 24 records", "missing": "no run was started there",
        "other": "holds no finished run of evaluate, ladder, audit or certify", "broken": "line 1",
    }[kind]  # fmt: skip
    with pytest.raises((InvalidInputError, FileFormatError), match=message):
        compare(runs / "prd", folder)


def test_votes_count_as_certified_beyond_a_radius(tmp_path: Path) -> None:
    summary = vq.certify(
        defense="prd:sigma=0.1,tau=0.1", bound_samples=8, selection=4, samples=20, limit=4,
        radii=(0.0, 0.02), eps=8 / 255, attack="pgd:steps=1", out=tmp_path,
    )  # fmt: skip
    found = read_run(tmp_path, radii=(0.0, 0.02))
    assert summary.vote is not None
    for point in summary.vote.curve:
        assert found.results["model", f"certified@{point.radius:g}"].accuracy.mean == point.vote


def test_a_ladder_has_its_rungs(tmp_path: Path) -> None:
    few = LadderSettings(calls=(100, 120), draws=(1,), suite="pgd:steps=1", runs=2, selection=2)
    summary = vq.ladder(defense="prd:codes=4", settings=few, limit=3, out=tmp_path)
    found = read_run(tmp_path)
    for row in summary.rows:
        name = "clean" if row.rung == "natural" else row.rung
        shares = found.results[row.subject, f"{name}@{row.calls}" if row.calls else name]
        assert shares.accuracy.mean == pytest.approx(row.mean)
    assert found.shares("model", "score")[0] == "score@120"  # after the most calls
    with pytest.raises(InvalidInputError, match=r"no result 'transfer' of 'model'; it has 'clean' of"):
        found.shares("model", "transfer")
    assert compare(tmp_path, tmp_path).differing == {}


def test_an_audit_has_a_verdict_and_nothing_to_compare(tmp_path: Path) -> None:
    few = AuditSettings(runs=2, queries=2, directions=1, draws=4, probe="pgd:steps=1", rehearsal=True)
    report = vq.audit(limit=2, attacks="pgd:steps=1", defense="prd", settings=few, out=tmp_path)
    assert read_run(tmp_path).verdict == report.audit.verdict
    with pytest.raises(InvalidInputError, match="is an audit, which has no results per image"):
        compare(tmp_path, tmp_path)
