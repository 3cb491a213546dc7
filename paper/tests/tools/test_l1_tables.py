"""Tables about L1 certificates write what the files say, and say so where a file is missing."""

import json
from pathlib import Path

import pytest

import l1_certificates
import l1_plot
import l1_tables
import recorded
from vqshield.core.serialization import to_plain

RADII = l1_certificates.L1_RADII


def row(scale: float, shares: float, **changed: object) -> l1_certificates.Row:
    certified = l1_certificates.Certified(
        norm="l1", images=1000, accuracy=0.8, right=0.85, mean_radius=0.4, seconds=7.2, shifts=443,
        curve=tuple(
            l1_certificates.Point(radius=r, certified=max(0.0, shares - 0.1 * r), real=0.0) for r in RADII
        ),
    )  # fmt: skip
    given = {
        "defense": f"splitting:scale={scale}", "agreement": 3.0, "entropy": 0.0, "after": None,
        "trained_behind": False, "epochs": 60, "training_seconds": 99.0, "weights_sha256": "ab",
        "certified": certified,
    }  # fmt: skip
    return l1_certificates.Row(**{**given, **changed})


def gaussian() -> l1_certificates.Row:
    curve = tuple(l1_certificates.Point(radius=r, certified=0.8 - 0.4 * r) for r in l1_certificates.L2_RADII)
    certified = l1_certificates.Certified(
        norm="l2", images=1000, accuracy=0.75, right=0.8, mean_radius=0.4, seconds=60, draws=100_000,
        saving=12.5, curve=curve,
        full=l1_certificates.Full(
            images=100, draws=100_000, curve=curve, seconds=70, saving=11.0, early_curve=curve
        ),
    )  # fmt: skip
    return row(0.0, 0.0, defense="gaussian:sigma=0.25", agreement=10.0, certified=certified)


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(recorded, "RESULTS", tmp_path)
    return tmp_path


def write(folder: Path, *rows: l1_certificates.Row) -> None:
    plan = {"start": "resnet18-cifar10.safetensors", "draws": 2, "precision": "bf16", "seed": 0}
    record = {"plan": plan, "environment": {"device": "a device", "torch": "2"}, "rows": rows}
    (folder / l1_tables.MEASURED).write_text(json.dumps(to_plain(record)))


def test_without_records_the_page_says_so(results: Path) -> None:
    said = "Not measured yet: `python paper/research/{}` writes what belongs here."
    for made in (l1_tables.measured_l1, l1_tables.best_l1, l1_tables.measured_l2, l1_tables.short):
        assert made() == said.format("l1_certificates.py")
    assert l1_tables.attacked() == said.format("attack_l1_votes.py")


def test_rows_and_the_best_of_them(results: Path) -> None:
    write(results, row(0.87, 0.8), row(5.2, 0.7, after="swrd", trained_behind=True), gaussian())
    text = l1_tables.measured_l1()
    assert "| 0.87 | 3 | 60 | nothing | 80.0 | 85.0 | 75.0 | 70.0 | 65.0 | 60.0 | 50.0 | 40.0 | 7 |" in text
    assert "`swrd`, trained for both" in text
    assert "First 1,000 CIFAR-10 test images" in text
    assert "| 0.5 | 75.0 | 0.87 | 0.0 | 72.2 | splitting, exact (DSSN) |" in l1_tables.best_l1()
    assert "certifies 75.0 / 70.0 / 60.0 % at 0.5 / 1 / 2 in L1, exactly" in l1_tables.short()
    assert "70.0 / 60.0 % at 0.25 / 0.5 in L2" in l1_tables.short()
    early = l1_tables.measured_l2()
    assert "| 0.25 | 10 | 60 | 80.0 | 80.0 | 70.0 | 60.0 | 50.0 | 100,000 | 12.5 |" in early
    assert "Of the first 100 images, with early stopping (11.0 times fewer draws)" in early


def test_published_figures_have_their_sources() -> None:
    for each in l1_tables.published():
        assert each.address.startswith("https://")
        assert len(each.commit) == 40
        shares = list(each.certified.values())
        assert shares == sorted(shares, reverse=True), "a larger radius is never certified more often"
        assert all(0 < share < 100 for share in shares)
    assert {each.norm for each in l1_tables.published()} == {"l1", "l2"}


def test_attacked_votes(results: Path) -> None:
    found = {
        "classifier": {"name": "split.safetensors"}, "certified": 500, "certified_right": 430,
        "mean_radius": 0.61, "flipped": 0, "lowest_lead": 1, "controls": 100, "flipped_outside": 37,
        "plan": {"scale": 0.87, "steps": 50, "eot": 32, "outside": 5.0},
        "environment": {"device": "a device", "torch": "2"},
    }  # fmt: skip
    (results / l1_tables.ATTACKED).write_text(json.dumps(found))
    text = l1_tables.attacked()
    assert "500 certified votes (λ = 0.87, 430 of them right, mean radius 0.610)" in text
    assert "**None flipped**" in text
    assert "With 5 times the budget 37 of 100 did." in text
    farther = {**found, "controls": 16, "flipped_outside": 9, "plan": {**found["plan"], "outside": 30.0}}
    (results / l1_tables.FARTHER).write_text(json.dumps(farther))
    assert (
        "37 of 100 did; with 30 times the budget 9 of 16 did (50 steps, 32 shifts, a device"
        in l1_tables.attacked()
    )
    (results / l1_tables.ATTACKED).write_text(json.dumps({**found, "flipped": 2}))
    assert "**2 flipped**" in l1_tables.attacked()


def test_the_picture_has_both_norms(results: Path) -> None:
    pytest.importorskip("matplotlib")
    write(results, row(0.87, 0.8), gaussian())
    measured = l1_tables.record()
    assert measured is not None
    l1_plot.draw(measured, l1_tables.published(), results / "picture.png")
    assert (results / "picture.png").stat().st_size > 10_000
