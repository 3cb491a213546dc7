"""What the page about the reproduction says is true of the records: of small ones by hand, and of ours."""

from dataclasses import replace
from typing import Any

import pytest

import reproduction_curves
import reproduction_tables
import reproduction_values as values
import reproduction_whole
import tables
from markdown_tables import cells
from vqshield_paper.reproduction.experiments import list_experiments
from vqshield_paper.reproduction.model import Column, PartSummary, Row, Value


def line(title: str, ours: float | None, paper: float | None, **more: Any) -> Row:
    value = Value(ours=ours, paper=paper, n=8)
    return Row(defense=title, title=title, values={"autoattack": value}, **more)


def part(*rows: Row) -> PartSummary:
    columns = (Column(key="autoattack", title="AutoAttack"),)
    return PartSummary(name="few", title="Few", status="complete", columns=columns, rows=rows)


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


class TestFindings:
    def test_the_order_of_t2_is_counted_from_the_records(self) -> None:
        found = values.part("T2")
        alike, pairs = values.same_order(found, "pgd")
        assert f"PGD, {alike} of {pairs}" in reproduction_tables.measured("T2")

    def test_ignorant_figures_of_t5_are_those_of_t2(self) -> None:
        first = cells(reproduction_tables.knowing())[0]
        each = values.row(values.part("T2"), "randdisc:codes=25").value("pgd")
        assert (first[2], first[4]) == (f"{100 * each.paper:.1f}", f"{100 * each.ours:.1f}")


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

    def test_no_certified_figure_of_ours_exceeds_what_proposition_1_can_give(self) -> None:
        found = [row for name in ("mnist", "cifar10") for row in values.rows(values.part("F7", name=name))]
        for row in found:
            certified, accuracy = (row.value(key).ours for key in ("certified", "accuracy"))
            assert certified <= 0.8971 * accuracy


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
