"""Tables about certificates write what the files say, and their sentences are true of the files."""

import json
from pathlib import Path
from typing import Any

import pytest

import certificate_tables
import radius_tables
import recorded
import trained_table
from markdown_tables import cells
from radius_tables import certified_at, is_gaussian, is_tuned
from recorded import Record

VOTES = {
    "classifier": {"name": "small.safetensors"}, "images": 200, "certified": 150, "certified_right": 140,
    "mean_radius": 0.1234, "flipped": 0, "lowest_share": 0.6543,
    "plan": {"defense": "swrd:noise=shared", "n": 10_000, "alpha": 0.001, "inside": 0.999, "votes": 1000,
             "seed": 3, "attacks": {"ste": "", "soft": ""}},
    "environment": {"device": "a device", "torch": "2"},
}  # fmt: skip


def votes(monkeypatch: pytest.MonkeyPatch, folder: Path, **changed: Any) -> str:
    monkeypatch.setattr(recorded, "RESULTS", folder)
    (folder / "attack-certified-votes.json").write_text(json.dumps({**VOTES, **changed}))
    return radius_tables.attacked()


@pytest.fixture(scope="module")
def curves() -> dict[float, list[Record]]:
    return radius_tables.levels(radius_tables.radius_record().rows)


class TestAttackedVotes:
    def test_without_a_record_the_page_says_so(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setattr(recorded, "RESULTS", tmp_path)
        assert radius_tables.attacked() == "Not measured yet."

    def test_what_a_record_says(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        text = votes(monkeypatch, tmp_path)
        assert "150 of 200 votes were certified (`swrd:noise=shared`, n = 10,000, alpha = 0.001)" in text
        assert "140 of them right, with a mean radius of 0.123" in text
        assert "within 0.999 of its own radius by 2 attacks, and 1,000 fresh draws" in text
        assert "**None flipped.** At worst 65.4 % of the draws" in text

    def test_a_vote_that_flipped_is_not_passed_over(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        assert "**2 flipped.**" in votes(monkeypatch, tmp_path, flipped=2)

    def test_where_nothing_was_certified(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        text = votes(monkeypatch, tmp_path, certified=0, certified_right=0, mean_radius=0, lowest_share=None)
        assert text.startswith("0 of 200 votes")
        assert "At worst" not in text


class TestErrorBounds:
    def test_every_figure_is_that_of_its_file(self) -> None:
        rows = cells(certificate_tables.bounds())
        found = [
            row for name in certificate_tables.BOUNDED for row in certificate_tables.certification(name).draws
        ]
        assert len(rows) == len(found)
        for shown, row in zip(rows, found, strict=True):
            exact = row.bounds["clopper_pearson"]
            shares = [row.accuracy, *(bound.certified_accuracy for bound in row.bounds.values())]
            shares += [exact.union, exact.binomial]
            assert [float(cell) for cell in shown[2:]] == pytest.approx(
                [100 * each for each in shares], abs=0.0501
            )

    def test_the_order_that_is_proved(self) -> None:
        for row in cells(certificate_tables.bounds()):
            measured, paper, truncated, _, exact = map(float, row[2:7])
            assert measured >= exact >= truncated >= paper


class TestRadii:
    def test_the_largest_mean_radius_of_a_level_comes_first(self) -> None:
        rows = cells(radius_tables.radii())
        keys = [(float(row[0]), -float(row[6])) for row in rows]
        assert keys == sorted(keys)
        assert {row[3] for row in rows} == {"as given", "fine-tuned"}

    def test_the_largest_radius_is_that_of_draws_that_all_agree(self) -> None:
        for level, largest, *_ in cells(radius_tables.reach()):
            unit = float(largest) / float(level)
            assert unit == pytest.approx(2.463, rel=0.02)  # Φ⁻¹(0.001^(1/1000)), from scipy

    def test_certified_accuracy_falls_with_the_radius(self) -> None:
        for row in cells(radius_tables.radii()):
            shares = [float(row[5]), *map(float, row[7:])]
            assert shares == sorted(shares, reverse=True)


class TestSentences:
    """The sentences of docs/certificates.md."""

    def test_as_given_the_quantizer_certifies_more_but_for_the_smallest_level(self, curves) -> None:
        for level, rows in curves.items():
            given = [row for row in rows if not is_tuned(row)]
            noise = next(row.mean_radius for row in given if is_gaussian(row))
            best = max(row.mean_radius for row in given if not is_gaussian(row))
            assert best < noise if level == min(curves) else best > 2 * noise

    def test_one_draw_is_better_than_two(self, curves) -> None:
        compared = 0
        for rows in curves.values():
            shared, image = (
                {
                    (row.defense.split(":")[0], row.settings.get("size"), row.settings["codes"]): row
                    for row in rows
                    if row.noise == noise and not is_tuned(row)
                }
                for noise in ("shared", "image")
            )
            for key in shared.keys() & image.keys():
                compared += 1
                assert shared[key].mean_radius > image[key].mean_radius
        assert compared

    def test_fine_tuned_noise_alone_is_better_in_every_column(self, curves) -> None:
        compared = 0
        for rows in curves.values():
            tuned = {row.noise: row for row in rows if is_tuned(row)}
            if not tuned:
                continue
            compared += 1
            noise, shared = tuned["gaussian"], tuned["shared"]
            for name in ("votes_right", "certified_right", "mean_radius"):
                assert getattr(noise, name) > getattr(shared, name)
            for radius in radius_tables.RADII:
                assert certified_at(noise, radius) >= certified_at(shared, radius)
        assert compared == 2

    def test_the_divergences(self) -> None:
        rows = [row for record in certificate_tables.divergence_records() for row in record.rows]
        assert all(row.kl.value > 3 * row.floor.value for row in rows)
        floors = {row.dimensions: row.floor.value for row in rows}
        assert [floors[size] for size in sorted(floors)] == sorted(floors.values())
        assert rows[0].second.value > 10 * rows[0].kl.value
        marked = [row[0] for row in cells(certificate_tables.divergences()) if row[5].endswith("†")]
        assert marked == ["swRD (s=3, k=25)"]  # the labels are not the term there, which is infinite


def test_cards_of_plain_training_come_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    used = {"arch": "small", "data": "cifar10", "epochs": 3, "peak_lr": 0.05, "batch": 8}
    card = {
        "test_accuracy": 0.5,
        "seconds": 1.6,
        "device": "cpu",
        "torch": "2",
        "test_images": 1000,
        "seed": 0,
    }
    start = {"file": "given.safetensors"}
    behind = {**used, "shield": "gaussian:sigma=1", "start": start}
    (tmp_path / "a.json").write_text(json.dumps({**card, "settings": behind}))
    (tmp_path / "b.json").write_text(
        json.dumps({**card, "settings": {**used, "shield": None, "start": None}})
    )
    monkeypatch.setattr(trained_table, "CARDS", tmp_path)
    rows = cells(trained_table.trained())
    assert [row[0] for row in rows] == ["b", "a"]
    assert [row[3] for row in rows] == ["nothing", "`gaussian:sigma=1`, from given"]
    assert rows[0][4:9] == ["3", "0.05", "8", "50.00", "2"]
