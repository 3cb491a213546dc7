"""What the page about the reproduction says is true of the records: of small ones by hand, and of ours."""

import gzip
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import recorded
import reproduction_curves
import reproduction_tables
import reproduction_values as values
import reproduction_whole
import tables

from vqshield.reproduction.experiments import list_experiments
from vqshield.reproduction.model import Column, PartSummary, Row, Value


def line(title: str, ours: float | None, paper: float | None, **more: Any) -> Row:
    value = Value(ours=ours, paper=paper, n=8)
    return Row(defense=title, title=title, values={"autoattack": value}, **more)


def part(*rows: Row) -> PartSummary:
    columns = (Column(key="autoattack", title="AutoAttack"),)
    return PartSummary(name="few", title="Few", status="complete", columns=columns, rows=rows)


def cells(text: str) -> list[list[str]]:
    """The rows of a table, without its heads."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


class TestValues:
    def test_differences_are_in_points_and_skip_what_one_side_lacks(self) -> None:
        found = part(line("a", 0.5, 0.6), line("b", None, 0.2), line("c", 0.3, None))
        assert values.differences(found, "autoattack") == {"a": pytest.approx(-10)}

    def test_what_others_published_is_no_row_of_ours(self) -> None:
        found = part(line("Trades", None, 0.5, literature=True), line("a", 0.5, 0.6))
        assert [row.title for row in values.rows(found)] == ["a"]

    def test_pairs_in_the_same_order(self) -> None:
        found = part(line("a", 0.1, 0.1), line("b", 0.2, 0.3), line("c", 0.3, 0.2))
        assert values.same_order(found, "autoattack") == (2, 3)

    def test_equal_figures_are_in_no_order(self) -> None:
        assert values.same_order(part(line("a", 0.1, 0.1), line("b", 0.1, 0.3)), "autoattack") == (0, 0)

    def test_a_column_that_the_paper_lacks_is_not_compared(self) -> None:
        assert values.compared(part(line("a", 0.5, None))) == []

    def test_missing_cells_are_named(self) -> None:
        assert values.missing(part(line("a", None, 0.5), line("b", 0.5, 0.5))) == ["a under AutoAttack"]

    @pytest.mark.parametrize(("value", "shown"), [(1.25, "+1.2"), (-0.06, "−0.1"), (0, "+0.0")])
    def test_signs(self, value: float, shown: str) -> None:
        assert tables.signed(value) == shown


class TestWhole:
    def test_every_experiment_has_its_line(self) -> None:
        assert [row[0] for row in cells(reproduction_whole.whole())] == list_experiments()

    @pytest.mark.parametrize("id", [id for id in list_experiments() if values.begun(id)])
    def test_a_line_says_complete_only_of_what_is(self, id: str) -> None:
        status = next(row[2] for row in cells(reproduction_whole.whole()) if row[0] == id)
        assert ("partial" in status) == any(each.status == "partial" for each in values.summary(id).parts)
        asked = [plan for plan, found in values.planned(id) if found is None]
        assert all(values.place(plan) in status.rpartition(";")[2] for plan in asked)
        assert ("not run" in status) == bool(asked)

    def test_what_was_not_begun_is_not_run(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(values, "MEASURED", "nowhere")
        assert not values.begun("T2")
        assert [found for _, found in values.planned("T2")] == [None]

    def test_inconsistencies_are_listed_once_each_with_all_their_ids(self) -> None:
        lines = reproduction_whole.inconsistent().splitlines()
        texts = [line.partition("**: ")[2] for line in lines]
        assert len(set(texts)) == len(texts)
        assert any(line.startswith("- **T2, T3, T5**: Attackers who know") for line in lines)

    def test_what_was_not_reached_names_the_cells(self) -> None:
        text = reproduction_whole.unreached()
        for id in filter(values.begun, list_experiments()):
            said = next((line for line in text.splitlines() if line.startswith(f"- {id}: ")), "")
            assert all(cell in said for each in values.summary(id).parts for cell in values.missing(each))


class TestFindings:
    def test_the_order_of_t2_is_counted_from_the_records(self) -> None:
        found = values.part("T2")
        alike, pairs = values.same_order(found, "pgd")
        assert f"PGD, {alike} of {pairs}" in reproduction_tables.measured("T2")

    def test_both_classifiers_stand_beside_the_paper(self) -> None:
        for row in cells(reproduction_tables.classifiers()):
            for name, shown in ((values.MEASURED, row[2]), (values.RECIPE, row[3])):
                each = next(e for e in values.rows(values.part("T2", name)) if e.title == row[0])
                assert shown == f"{100 * each.value('natural').ours:.1f}"

    def test_ignorant_figures_of_t5_are_those_of_t2(self) -> None:
        first = cells(reproduction_tables.knowing())[0]
        each = values.row(values.part("T2"), "randdisc:codes=25").value("pgd")
        assert (first[2], first[4]) == (f"{100 * each.paper:.1f}", f"{100 * each.ours:.1f}")

    def test_without_a_record_of_mnist_the_page_says_so(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setattr(recorded, "RESULTS", tmp_path)
        assert reproduction_tables.background() == "Not measured yet."

    def test_what_a_record_of_mnist_says(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        answer = {"right": 0.1, "most_frequent": 8, "its_share": 0.9}
        record = {
            "data": {"images": 1200}, "attack": "pgd", "eps": 0.31, "defense": "randdisc:codes=2", "seed": 3,
            "environment": {"device": "a device", "torch": "2"},
            "rows": [{"name": "net.safetensors", "raised": [{"background": 0.05, **answer}],
                      "attacked": answer, "quantized": {**answer, "right": 0.05},
                      "stretched": {**answer, "right": 0.7},
                      "background": {"attacked": 0.141, "quantized": 0.162}}],
        }  # fmt: skip
        (tmp_path / "mnist-background.json").write_text(json.dumps(record))
        monkeypatch.setattr(recorded, "RESULTS", tmp_path)
        text = reproduction_tables.background()
        assert cells(text) == [["net", "10.0 (8: 90.0)", "10.0 (8: 90.0)", "5.0 (8: 90.0)", "70.0 (8: 90.0)"]]
        assert "First 1,200 MNIST test images" in text
        assert "at 0.14 on average after the attack and at 0.16 after the quantizer" in text
        assert "5.0 % of the digits are right and 90.0 % are called 8" in text


class TestCurves:
    @pytest.fixture
    def f4(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """F4 with one defense at three k: 30, 60, 40 % of ours, 50, 20, 10 % of the paper's."""
        found = values.part("F4")
        chosen = [row for row in found.rows if row.series == "swRD" and row.x in (5, 10, 20)]
        rows = tuple(
            replace(row, values={**row.values, "autoattack": Value(ours=ours, paper=paper)})
            for row, ours, paper in zip(chosen, (0.3, 0.6, 0.4), (0.5, 0.2, 0.1), strict=True)
        )
        monkeypatch.setattr(reproduction_curves, "part", lambda *_, **__: replace(found, rows=rows))

    @pytest.mark.usefixtures("f4")
    def test_the_best_k_and_the_fall_from_there(self) -> None:
        assert cells(reproduction_curves.bends("F4")) == [
            ["swRD", "5", "10", "50.0", "60.0", "−40.0", "−20.0"]
        ]

    @pytest.mark.usefixtures("f4")
    def test_distances_of_a_curve(self) -> None:
        assert "AutoAttack: swRD 30.0 (+40.0 at 10)." in reproduction_curves.bends("F4")

    def test_gaps_that_are_equal_count_for_neither(self) -> None:
        gap = {"pRD": {1.0: 0.5, 2.0: 0.1}, "swRD": {1.0: 0.5, 2.0: 0.2}}
        assert reproduction_curves.winners(gap, [1.0, 2.0], max) == "equal 1, swRD 1"

    def test_no_certified_figure_of_ours_exceeds_what_proposition_1_can_give(self) -> None:
        found = [row for name in ("mnist", "cifar10") for row in values.rows(values.part("F7", name=name))]
        for row in found:
            certified, accuracy = (row.value(key).ours for key in ("certified", "accuracy"))
            assert certified <= 0.8971 * accuracy

    def test_counts_of_a1_are_those_that_the_inconsistency_names(self) -> None:
        natural, _, attacked, _ = cells(reproduction_curves.once())
        assert (natural[1:3], attacked[1:3]) == (["2 of 20", "14 of 20"], ["14 of 20", "4 of 20"])


class TestDivergences:
    def test_values_of_a_codebook(self) -> None:
        for text, channels, expected in (
            ("randdisc:codes=25", 3, 75), ("swrd:size=3,codes=25", 3, 675), ("prd:size=2,codes=2", 1, 8)
        ):  # fmt: skip
            assert reproduction_curves.codebook_values(text, channels) == expected

    @pytest.mark.parametrize("data", ["mnist", "cifar10"])
    def test_the_order_is_that_of_the_rows(self, data: str) -> None:
        text = reproduction_curves.divergences(data)
        ours = {row[0].split()[0]: [float(x.replace(",", "")) for x in row[1:]] for row in cells(text)}
        by_estimate = sorted(ours, key=lambda name: ours[name][7])
        by_both = sorted(ours, key=lambda name: ours[name][7] + ours[name][9])
        assert text.endswith(f"ours {' < '.join(by_estimate)}, with the labels {' < '.join(by_both)}.")

    def test_kinds_of_covariances_are_means_over_the_images(self, monkeypatch, tmp_path: Path) -> None:
        def measured(image: int, kind: str, eps: float, kl: float) -> dict[str, Any]:
            shield = {"text": "randdisc:codes=25", "defense": {"codes": 25}}
            found = {"kl": {"value": kl}, "floor": {"value": 0.5}, "held_out": 200.0}
            return {"image": image, "covariance": kind, "eps": eps, **shield, **found}

        rows = [measured(image, kind, eps / 255, image + eps)
                for image in (0, 1) for kind in ("tied", "diag") for eps in (2, 8, 16)]  # fmt: skip
        record = {
            "data": {"images": 2}, "attack": "pgd-20", "rows": rows,
            "settings": {"codebooks": 10, "mixture": {"components": 8}, "seed": 0},
            "environment": {"device": "a device", "torch": "2"},
        }  # fmt: skip
        (tmp_path / reproduction_curves.COVARIANCES).write_bytes(gzip.compress(json.dumps(record).encode()))
        monkeypatch.setattr(recorded, "RESULTS", tmp_path)
        text = reproduction_curves.covariances()
        assert cells(text) == [[kind, "0.5", "8.5", "16.5", "200.0"] for kind in ("tied", "diag")]
        assert "first 2 CIFAR-10 test images" in text
        assert text.endswith("at 16/255 differ by factors of up to RandDisc (k=25) 1.")

    def test_distances_in_standard_deviations_are_those_of_the_figures(self) -> None:
        found = values.part("F8", name="mnist")
        last = {row.series: row.value("kl") for row in values.rows(found) if row.x == 0.32}
        text = reproduction_curves.deviations()
        for series, value in last.items():
            apart = [round(math.sqrt(2 * nats)) for nats in (value.paper, value.ours)]
            assert f"{series} {apart[0]}, {apart[1]}" in text
