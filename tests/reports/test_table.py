"""One table in every form: what it shows, and that foreign text stays text in each of them."""

import csv
import io
import json
import sys
from types import ModuleType

import pytest
from markdown_it import MarkdownIt

from pages import Page
from terminal import assert_nothing_is_cut, printed
from vqshield.core.errors import InvalidInputError, MissingExtraError
from vqshield.models.draws import Accuracy
from vqshield.reports.table import Cell, Column, Note, Section, Table

CLEAN = Accuracy(mean=0.814, std=0.005, standard_error=0.0123, runs=5, n=1000)
ATTACKED = Accuracy(mean=0.123, std=0.02, standard_error=0.0331, runs=5, n=100)
HOSTILE = '=1+1 <script>alert("x")</script> | [a](javascript:alert(1)) `b` \\input{c} & %\n# d'


def table(title: str = "CIFAR-10", defense: str = "swRD (s=3, k=25)") -> Table:
    return Table(
        title=title,
        columns=[
            Column("attack", "attack"),
            Column("knows", "what it knows"),
            Column("accuracy", "accuracy", "percent", help="mean of 5 runs"),
            Column("linf", "as L-inf", "number", format=".3f", unit="/255"),
            Column("queries", "queries per image", "count"),
            Column("time", "time", "seconds", ascending=True),
        ],
        rows=[
            Section(defense),
            ["natural", "", CLEAN, 0.0, None, 75.0],
            [
                Cell("PGD", notes=("steps=20",), badges=("baseline",)),
                "weights",
                Cell(
                    ATTACKED, mark="low", file="pgd/records.jsonl", notes=(Note("audit", file="audit.html"),)
                ),
                2.0,
                1_000_000,
                5025.0,
            ],
            Section("none"),
            [defense, "all", Cell(None, notes=("no GPU",)), 8.0, 2500, None],
        ],
        caption="N = 1000",
        facts=[("seed", "7")],
        missing="not run",
    )


class TestValues:
    @pytest.mark.parametrize(
        ("column", "value", "text"),
        [
            (Column("a", "a", "percent"), 0.6734, "67.3"),
            (Column("a", "a", "percent"), CLEAN, "81.4 ± 1.2"),
            (Column("a", "a", "percent", spread="std"), CLEAN, "81.4 ± 0.5"),
            (Column("a", "a", "percent", format=".2f"), 0.5, "50.00"),
            (Column("a", "a", "percent"), "83.42", "83.42"),
            (Column("a", "a", "number"), 0.012345, "0.0123"),
            (Column("a", "a", "number", format=".3f", unit="/255"), 2, "2.000/255"),
            (Column("a", "a", "count"), 1_000_000, "1,000,000"),
            (Column("a", "a", "seconds"), 90.0, "1.5 min"),
            (Column("a", "a"), 3, "3"),
            (Column("a", "a"), None, ""),
        ],
    )
    def test_each_kind_has_its_form(
        self, column: Column, value: float | str | Accuracy | None, text: str
    ) -> None:
        assert column.text(value) == text

    def test_rows_fit_the_columns(self) -> None:
        with pytest.raises(InvalidInputError, match=r"has 1 cells: expected 2"):
            Table(title="", columns=[Column("a", "a"), Column("b", "b")], rows=[["x"]])
        with pytest.raises(InvalidInputError, match="each of them once"):
            Table(title="", columns=[Column("a", "a"), Column("a", "b")], rows=[])

    def test_columns_can_be_left_out(self) -> None:
        assert [column.name for column in table().without("knows", "linf").columns] == [
            "attack", "accuracy", "queries", "time",
        ]  # fmt: skip
        assert "weights" not in table().without("knows").markdown()


class TestTerminal:
    @pytest.mark.parametrize("width", [40, 60, 80, 120])
    def test_nothing_is_cut(self, width: int) -> None:
        assert_nothing_is_cut(table().terminal(), width)

    def test_title_sections_notes_and_facts(self) -> None:
        lines = [
            " ".join(line.split())
            for line in printed(table("A [bold]title[/bold]").terminal(), 120).splitlines()
        ]
        assert "A [bold]title[/bold]" in lines
        assert "swRD (s=3, k=25)" in lines
        assert "natural 81.4 ± 1.2 0.000/255 not run 1.2 min" in lines
        assert "PGD (baseline) weights 12.3 ± 3.3 2.000/255 1,000,000 1.4 h" in lines
        assert "steps=20 audit" in lines
        assert "seed 7" in lines
        assert "steps=20" not in printed(table().terminal(notes=False), 120)

    def test_a_table_of_words_alone_is_printed(self) -> None:
        words = Table(title="t", columns=[Column("a", "a"), Column("b", "b")], rows=[["one", "two"]])
        assert "one" in printed(words.terminal(), 40)

    def test_without_rich_the_extra_is_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "rich", None)
        with pytest.raises(MissingExtraError, match="rich is not installed"):
            table().terminal()


class TestPage:
    def test_values_notes_and_links(self) -> None:
        source = table().html(bars=True)
        page = Page(source)
        text = " ".join(" ".join(page.text).replace("\xa0", " ").split())
        for words in ("81.4", "± 1.2, N = 1000", "baseline", "steps=20", "not run: no GPU", "mean of 5 runs"):
            assert words in text
        assert [each["href"] for each in page.all("a")] == ["pgd/records.jsonl", "audit.html"]
        assert source.count('class="collapsed"') == 1
        assert "width:12.3%" in source
        assert "width:12.3%" not in table().html()
        assert [each["colspan"] for each in page.all("th") if "colspan" in each] == ["6", "6"]

    def test_sorting(self) -> None:
        page = Page(table().html(sorted_by="accuracy"))
        heads = [each for each in page.all("th") if each["scope"] == "col"]
        assert [each["data-first"] for each in heads] == [
            "ascending", "ascending", "descending", "descending", "descending", "ascending",
        ]  # fmt: skip
        assert [each.get("aria-sort") for each in heads] == [None, None, "descending", None, None, None]
        cells = [each.get("data-value") for each in page.all("td")]
        assert cells[:5] == ["", "0.814", "0.0", None, "75.0"]
        assert len(page.all("button")) == 6

    def test_foreign_text_stays_text(self) -> None:
        hostile = Table(
            title=HOSTILE,
            columns=[Column("a", HOSTILE, help=HOSTILE), Column("b", HOSTILE, "percent")],
            rows=[
                Section(HOSTILE),
                [
                    Cell(
                        HOSTILE, notes=(HOSTILE, Note(HOSTILE, url="https://x/" + HOSTILE)), badges=(HOSTILE,)
                    ),
                    HOSTILE,
                ],
                [HOSTILE, Cell(CLEAN, file='//evil.example/"><script>')],
            ],
            caption=HOSTILE,
            facts=[(HOSTILE, HOSTILE)],
            missing=HOSTILE,
        )
        for sorted_by in (None, "b"):
            page = Page(hostile.html(sorted_by=sorted_by))
            assert not page.all("script")
            assert [each["href"] for each in page.all("a")] == [
                "https://x/" + HOSTILE,
                "evil.example/%22%3E%3Cscript%3E",
            ]

    def test_a_note_leads_to_the_web_by_https_alone(self) -> None:
        with pytest.raises(InvalidInputError, match="https://"):
            Note("a", url="javascript:alert(1)")


class TestDocuments:
    def test_markdown(self) -> None:
        assert table().markdown(files=True).splitlines() == [
            "| attack | what it knows | accuracy | as L-inf | queries per image | time |",
            "|---|---|---:|---:|---:|---:|",
            "| **swRD (s=3, k=25)** |  |  |  |  |  |",
            "| natural |  | 81.4 ± 1.2 | 0.000/255 | not run | 1.2 min |",
            "| PGD (baseline) | weights | [12.3 ± 3.3](pgd/records.jsonl) | 2.000/255 | 1,000,000 | 1.4 h |",
            "| **none** |  |  |  |  |  |",
            "| swRD (s=3, k=25) | all | not run | 8.000/255 | 2,500 | not run |",
            "",
            "seed: 7.",
        ]
        assert "| PGD (baseline) (steps=20) |" in table().markdown(notes=True)
        assert "| **12.3 ± 3.3** |" in table().markdown(low="**")

    def test_markdown_shows_foreign_text_as_it_is(self) -> None:
        tokens = MarkdownIt("commonmark").enable("table").parse(table(defense=HOSTILE).markdown())
        cells = [tokens[place + 1] for place, token in enumerate(tokens) if token.type == "td_open"]
        shown = ["".join(child.content for child in cell.children or ()) for cell in cells]
        assert shown.count(" ".join(HOSTILE.split())) == 2
        assert len(cells) == 5 * 6

    def test_latex(self) -> None:
        lines = table(defense=HOSTILE).latex(notes=True).splitlines()
        assert lines[0] == r"\begin{tabular}{llrrrr}"
        assert (
            r"PGD (baseline) (steps=20) & weights & 12.3 $\pm$ 3.3 (audit) & 2.000/255 & 1,000,000 & 1.4 h \\"
            in lines
        )
        assert r"\textbackslash{}input\{c\}" in lines[4]
        assert lines[-1] == r"\end{tabular}"
        assert r"\textbf{12.3 $\pm$ 3.3} &" in table().latex(low="textbf")

    def test_columns_of_a_group_stand_together(self) -> None:
        grouped = Table(
            title="",
            columns=[Column("a", "defense"), *(Column(each, each, "percent", group="PGD") for each in "xy")],
            rows=[["swRD", 0.5, "61.20 ± 0.13"]],
        )
        assert grouped.markdown().splitlines()[0] == "| defense | PGD: x | PGD: y |"
        assert grouped.latex().splitlines()[2:4] == [r" & \multicolumn{2}{c}{PGD} \\", r"defense & x & y \\"]
        assert "61.20" in Page(grouped.html()).text


class TestData:
    def test_records_are_as_measured(self) -> None:
        natural, pgd, last = table().records()
        assert natural["section"] == "swRD (s=3, k=25)"
        assert (natural["accuracy"], natural["accuracy_standard_error"], natural["accuracy_n"]) == (
            0.814, 0.0123, 1000,
        )  # fmt: skip
        assert pgd["attack_note"] == "steps=20"
        assert (last["section"], last["accuracy"], last["accuracy_note"]) == ("none", None, "no GPU")

    def test_csv_holds_no_formula(self) -> None:
        read = list(csv.DictReader(io.StringIO(table(defense=HOSTILE).csv(), newline="")))
        assert read[0]["section"] == f"'{HOSTILE}"
        assert [each["accuracy"] for each in read] == ["0.814", "0.123", ""]
        assert read[1]["accuracy_std"] == "0.02"
        for begin in ("=", "+", "-", "@", "\t", "\r"):
            one = Table(title="", columns=[Column(f"{begin}a", "")], rows=[[f"{begin}1"], [-1]])
            rows = list(csv.reader(io.StringIO(one.csv(), newline="")))
            assert rows == [[f"'{begin}a"], [f"'{begin}1"], ["-1"]]

    def test_csv_of_no_rows_names_the_columns(self) -> None:
        assert Table(title="", columns=[Column("a", "A")], rows=[]).csv() == "a\r\n"

    def test_json(self) -> None:
        rows = [["x", float("nan")], ["y", 1.5]]
        plain = json.loads(
            Table(title="t", columns=[Column("a", "A"), Column("b", "B", "number")], rows=rows).to_json()
        )
        assert plain == {
            "title": "t", "caption": "", "facts": {},
            "columns": [
                {"name": "a", "title": "A", "kind": "text"}, {"name": "b", "title": "B", "kind": "number"},
            ],
            "rows": [{"a": "x", "b": None}, {"a": "y", "b": 1.5}],
        }  # fmt: skip

    def test_pandas_gets_the_records(self, monkeypatch: pytest.MonkeyPatch) -> None:
        class DataFrame:
            @staticmethod
            def from_records(records: object) -> object:
                return ("frame", records)

        pandas = ModuleType("pandas")
        pandas.DataFrame = DataFrame  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "pandas", pandas)
        assert table().to_pandas() == ("frame", table().records())

    def test_pandas(self) -> None:
        pytest.importorskip("pandas")
        assert list(table().to_pandas()["queries"].dropna()) == [1_000_000, 2500]
