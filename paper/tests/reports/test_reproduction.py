"""Reports of a reproduced experiment: the same right values in every format, nothing hostile let through."""

import random
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from html import unescape

import pytest
from markdown_it import MarkdownIt
from summaries import COLUMNS, HOSTILE, PIXEL, gaps, hostile, part, row, rows, summary, texts, value, written

from pages import Page
from terminal import assert_nothing_is_cut
from vqshield.core.errors import FileFormatError, InvalidInputError, MissingExtraError
from vqshield.core.serialization import from_plain, to_plain
from vqshield.reports.text import escape_latex, escape_markdown
from vqshield_paper.reports import caveats, terminal_tables, write_report
from vqshield_paper.reports.grid import NOTHING
from vqshield_paper.reports.rounding import MINUS, error_decimals, share_decimals
from vqshield_paper.reproduction.model import (
    Audited,
    ClassifierId,
    DataId,
    GalleryPicture,
    GalleryRow,
    RunMade,
    Summary,
)


def markdown_tables(source):
    """Tables as a reader of Markdown sees them: {title: {heading: text}}."""
    tables, cells, lines = [], [], []
    for token in MarkdownIt("commonmark").enable("table").parse(source):
        if token.type == "inline":
            cells.append("".join(child.content for child in token.children))
        elif token.type in ("tr_open", "table_open"):
            cells = []
            lines = [] if token.type == "table_open" else lines
        elif token.type == "tr_close":
            lines.append(cells)
        elif token.type == "table_close":
            heads, *body = lines
            tables.append({line[0]: dict(zip(heads, line, strict=True)) for line in body})
    return tables


def latex_rows(source):
    """Every table line of a LaTeX source as plain cells."""
    found = []
    for line in source.splitlines():
        if line.endswith(r" \\"):
            cells = re.split(r"(?<!\\)&", line.removesuffix(r" \\"))
            plain = [re.sub(r"\\vqfarbelow\{(.*?)\}", r"\1", cell).strip() for cell in cells]
            found.append([cell.replace(r"$\pm$", "±").replace("$-$", "-") for cell in plain])
    return found


def html_rows(source):
    """The lines of the tables of a page: title and cells, tags removed."""
    found = []
    for body in re.findall(r"<tbody.*?</tbody>", source, re.DOTALL):
        for line in body.split("<tr ")[1:]:
            title, *cells = re.findall(r"<t[hd] .*?</t[hd]>", line, re.DOTALL)
            found.append(
                [" ".join(unescape(re.sub(r"<[^>]+>", " ", cell)).split()) for cell in (title, *cells)]
            )
    return found


def number(text):
    return float(text.split("±")[0].replace(MINUS, "-").strip("() "))


def shown(value):
    return pytest.approx(100 * value, abs=0.0051)


def drawn_at_random():
    """Twenty defenses with values of all kinds, some of them missing."""
    draw = random.Random(7)
    found = []
    for place in range(20):
        values = {}
        for column in COLUMNS:
            paper = None if draw.random() < 0.3 else round(draw.random(), 4)
            ours = None if draw.random() < 0.3 else draw.random()
            if draw.random() < 0.8:
                values[column.key] = value(paper, ours, std=draw.choice([None, 0.01]))
        found.append(row(f"defense {place}", values))
    return found


def test_values_in_all_formats_are_those_of_the_summary(tmp_path):
    found = summary(part(rows=drawn_at_random()))
    source = texts(tmp_path, found)
    (table,) = markdown_tables(source["md"])
    tabular = {cells[0]: cells[1:] for cells in latex_rows(source["tex"])[2:]}
    page = {cells[0]: cells[1:] for cells in html_rows(source["html"])}
    (terminal,) = terminal_tables(found)
    columns = [[str(cell) for cell in column.cells] for column in terminal.columns]
    for line, each in enumerate(found.parts[0].rows):
        for place, column in enumerate(COLUMNS):
            paper, ours = each.value(column.key).paper, each.value(column.key).ours
            by_name = {name: table[each.title][f"{column.title}: {name}"] for name in ("paper", "ours", "Δ")}
            by_place = dict(zip(by_name, tabular[each.title][3 * place : 3 * place + 3], strict=True))
            in_page, in_terminal = page[each.title][place], columns[place + 1][line]
            apart = None if paper is None or ours is None else ours - paper
            for name, wanted in (("paper", paper), ("ours", ours), ("Δ", apart)):
                if wanted is None:
                    assert by_name[name] == NOTHING
                    assert by_place[name] == "--"
                else:
                    assert number(by_name[name]) == shown(wanted)
                    assert number(by_place[name]) == shown(wanted)
            for text in (in_page.removeprefix(column.title).strip(), in_terminal):
                first, below = re.split(r"\s*paper ", text)
                assert first == NOTHING if ours is None else number(first) == shown(ours)
                assert (
                    below.startswith(NOTHING)
                    if paper is None
                    else number(re.split("[Δ±]", below)[0]) == shown(paper)
                )
                assert ("Δ" in below) == (apart is not None)
                if apart is not None:
                    assert number(below.split("Δ")[1].replace("points", "")) == shown(apart)


def test_decimals_are_those_the_paper_prints(tmp_path):
    coarse = part(rows=[row("swRD", {"natural": value(0.83, 0.7751)})])
    assert latex_rows(texts(tmp_path, summary(coarse))["tex"])[2][:4] == ["swRD", "83.0", "77.5", "-5.5"]
    nats = part(unit="nats", rows=[row("swRD", {"natural": value(0.123, 2.5)})])
    assert latex_rows(texts(tmp_path, summary(nats))["tex"])[2][:4] == ["swRD", "0.123", "2.500", "+2.377"]


@pytest.mark.parametrize(
    ("n", "ours", "apart"),
    [
        (8, "75 ± 6", "-8"),
        (25, "75 ± 6", "-8"),
        (26, "75.0 ± 6.2", "-8.4"),
        (2500, "75.0 ± 6.2", "-8.4"),
        (2501, "75.00 ± 6.25", "-8.42"),
    ],
)
def test_few_images_have_few_decimals_and_the_paper_keeps_its_own(tmp_path, n, ours, apart):
    values = {"natural": value(0.8342, 0.75, n=n, std=0.0625)}
    (natural,) = latex_rows(texts(tmp_path, summary(part(rows=[row("swRD", values)])))["tex"])[2:]
    assert natural[1:4] == ["83.42", ours, apart]


def test_decimals_follow_the_fewest_images_of_a_column(tmp_path):
    lines = [row("few", {"natural": value(0.8342, 0.75, n=8)}), row("many", {"natural": value(0.8, 0.7)})]
    few, many = latex_rows(texts(tmp_path, summary(part(rows=lines)))["tex"])[2:]
    assert (few[2], many[2]) == ("75 (N = 8)", "70 (N = 10000)")


def test_decimals_of_what_is_no_share_follow_its_standard_error(tmp_path):
    lines = [
        row("a", {"natural": value(1.234, 2.345, n=10, standard_error=0.31)}),
        row("b", {"natural": value(240, 997.27, n=10, standard_error=13.54)}),
    ]
    first, second = latex_rows(texts(tmp_path, summary(part(unit="nats", rows=lines)))["tex"])[2:]
    assert first[1:4] == ["1.234", "2.35 ± 0.31", "+1.11"]
    assert second[1:4] == ["240.000", "997 ± 14", "+757"]


@pytest.mark.parametrize(("error", "places"), [(17.7, 0), (10, 0), (9.9, 1), (1.58, 1), (0.5, 2), (0.05, 3)])
def test_two_digits_of_an_error_are_worth_printing(error, places):
    assert error_decimals(error) == places


@pytest.mark.parametrize(("images", "places"), [(1, 0), (8, 0), (100, 1), (10_000, 2), (1_000_000, 3)])
def test_more_images_have_more_decimals(images, places):
    assert share_decimals(images) == places


@pytest.mark.parametrize(
    ("data", "classifier", "stand_in", "wanted"),
    [
        ("cifar10", "small-cifar10", "a small classifier", "CIFAR-10, small-cifar10"),
        ("cifar10-sample", "small-cifar10", "a sample", "CIFAR-10 sample, small-cifar10"),
        ("nips17", "efficientnet-lite0", "other images", "nips17, efficientnet-lite0"),
        ("cifar10", "resnet18.safetensors", None, "CIFAR-10, ResNet18"),
    ],
)
def test_a_section_is_called_what_was_measured(tmp_path, data, classifier, stand_in, wanted):
    measured = part(
        data=DataId(name=data, images=8, sha256="0" * 64),
        classifier=ClassifierId(name=classifier, sha256="1" * 64),
        stand_in=stand_in,
    )
    found = summary(measured, part(name="other", title="other"))
    source = texts(tmp_path, found)
    assert f"<h2>{wanted}</h2>" in source["html"]
    assert f"\n## {wanted}\n" in source["md"]
    assert rf"\textbf{{{wanted}}}" in source["tex"]
    assert str(terminal_tables(found)[0].title) == f"T2: {wanted}"
    assert any(line.startswith(f"{wanted}: on the same 10000 images") for line in caveats(found))


def test_a_difference_of_nothing_has_no_sign(tmp_path):
    found = summary(part(rows=[row("swRD", {"natural": value(0.8342, 0.83419)})]))
    assert latex_rows(texts(tmp_path, found)["tex"])[2][3] == "0.00"


def test_an_adaptive_value_far_below_is_red_and_no_other(tmp_path):
    source = texts(tmp_path, summary())
    assert source["html"].count('class="collapsed"') == 1
    assert "**1.50 ± 0.10**" in source["md"]
    assert r"\vqfarbelow{1.50 $\pm$ 0.10}" in source["tex"]
    styles = [str(cell.style) for cell in list(terminal_tables(summary())[0].columns)[4].cells]
    assert ["red" in style for style in styles] == [False, True, False]
    close = summary(part(rows=[row("swRD", {"pgd": value(0.5, 0.5), "adaptive": value(None, 0.4)})]))
    assert 'class="collapsed"' not in texts(tmp_path, close)["html"]


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="no LaTeX here")
@pytest.mark.slow
def test_latex_accepts_it(tmp_path):
    texts(tmp_path, hostile())
    wide = r"\documentclass{article}\begin{document}\input{report.tex}\end{document}"
    (tmp_path / "all.tex").write_text(wide)
    command = ["pdflatex", "-halt-on-error", "-interaction=nonstopmode", "-no-shell-escape", "all.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_the_first_sentence_names_the_largest_gap(tmp_path):
    sentence = (
        "On the same 10000 images, swRD (s=3, k=25) has 71.2 % under the paper's protocol and 1.5 % under an "
        "adaptive attack."
    )
    smaller = row("pRD", {"pgd": value(None, 0.6), "adaptive": value(None, 0.02)})
    source = texts(tmp_path, summary(part(rows=[smaller, *rows()])))
    assert sentence in unescape(source["html"])
    assert sentence in source["md"]
    assert sentence.replace("%", r"\%") in source["tex"]
    assert sentence in caveats(summary())


def test_what_a_reader_must_know_stands_in_every_format(tmp_path):
    audits = (Audited(defense="swrd", passed=False, lines=("R4 fail: black box wins",)),)
    values = {"pgd": value(0.7212, 0.712, standard_error=0.0143, n=500)}
    lines = (*rows(), row("few", values))
    found = summary(part(stand_in="a small classifier", audits=audits, rows=lines), notes=["k is 25 or 30"])
    words = [
        "Stand-in: a small classifier.", "N = 500 / 10000", "8/255 in L-inf", "sha256 0123456789ab",
        "k is 25 or 30", "sha256 fedcba987654", "swrd: audit failed", "2.13.0", "0.3.0", "4bba4c8", "17",
        "1.5 min", "All defenses", "at most 1.4 points", "as published",
    ]  # fmt: skip
    for source in texts(tmp_path, found).values():
        for word in words:
            assert word in unescape(source), word
        assert "upper bounds" not in source
    assert "R4 fail: black box wins" in (tmp_path / "report.html").read_text()


def test_where_no_audit_was_run_it_says_so(tmp_path):
    for source in texts(tmp_path, summary()).values():
        assert "No audit was run: take robust accuracies as upper bounds." in source


def test_counts_stand_in_the_heading_where_columns_differ_and_in_the_cell_where_lines_do(tmp_path):
    values = {"natural": value(None, 0.8, n=1000), "pgd": value(None, 0.7, n=500)}
    source = texts(tmp_path, summary(part(rows=[row("a", values)])))["md"]
    assert "natural: ours (N = 1000)" in source
    assert "PGD-20: ours (N = 500)" in source
    other = row("b", {"natural": value(None, 0.8, n=999)})
    (table,) = markdown_tables(texts(tmp_path, summary(part(rows=[row("a", values), other])))["md"])
    assert table["b"]["natural: ours"] == "80.0 (N = 999)"
    (same,) = markdown_tables(texts(tmp_path, summary())["md"])
    assert same["swRD (s=3, k=25)"]["natural: ours"] == "77.50 ± 0.20"


def test_a_part_that_was_not_run_shows_why_and_the_paper_alone(tmp_path):
    lines = [row("swRD", {"natural": value(0.7113), "autoattack": value(0.4211, paper_std=0.002)})]
    undone = part(
        name="imagenet", title="ImageNet", status="not run", why="no data here", rows=lines, data=None
    )
    source = texts(tmp_path, summary(part(), undone, complete=False))
    for text in source.values():
        assert "not finished" in text
        assert text.index("not finished") < text.index("ResNet18:")
        assert "Not run: no data here. The values are the paper" in text
    assert html_rows(source["html"])[-1] == [
        "swRD", "natural 71.13", f"PGD-20 {NOTHING}", "AutoAttack 42.11 ± 0.20", f"adaptive-v1 {NOTHING}",
    ]  # fmt: skip
    assert not any("ours" in heading for heading in markdown_tables(source["md"])[-1]["swRD"])
    assert latex_rows(source["tex"])[-1] == ["swRD", "71.13", "--", "42.11 ± 0.20", "--"]


def test_parts_without_rows_and_summaries_without_parts(tmp_path):
    for text in texts(tmp_path, summary(part(rows=[], columns=[]))).values():
        assert "CIFAR-10, ResNet18" in text
    assert not terminal_tables(summary(part(rows=[])))
    assert sorted(written(tmp_path, replace(summary(), parts=()))) == [
        "report.html",
        "report.md",
        "report.tex",
    ]


def test_a_gallery_tells_right_from_wrong_by_more_than_colour(tmp_path):
    pictures = [
        GalleryPicture(caption="clean", image=PIXEL, verdict="cat", correct=True),
        GalleryPicture(caption="attacked", image=PIXEL, verdict="dog", correct=False),
        GalleryPicture(caption="difference", image=PIXEL),
    ]
    gallery = [GalleryRow(label="cat", pictures=pictures)]
    source = texts(tmp_path, summary(part(rows=[], columns=[], gallery=gallery), view="gallery"))
    page = Page(source["html"])
    assert [image["alt"] for image in page.all("img")] == [
        "cat, clean: classified as cat, correct", "cat, attacked: classified as dog, wrong",
        "cat, difference",
    ]  # fmt: skip
    assert "- cat: clean: ✓ cat; attacked: ✗ dog; difference" in source["md"]


def test_a_gap_may_be_negative_and_is_counted_in_points(tmp_path):
    source = texts(tmp_path, summary(gaps(-0.125, -0.00001, 0.5), view="curves"), "curves")
    (table,) = markdown_tables(source["md"])
    shown_as = [line["natural - AutoAttack: ours"] for line in table.values()]
    assert shown_as == [f"{MINUS}12.5", "0.0", "50.0"]
    assert [line["natural - AutoAttack: Δ"] for line in table.values()] == [
        f"{MINUS}14.5",
        f"{MINUS}2.0",
        "+48.0",
    ]
    assert latex_rows(source["tex"])[2] == ["swRD (k=1)", "2.0", "-12.5", "-14.5"]
    assert "Values in points; Δ: ours minus the paper's, in points." in source["md"]


@pytest.mark.parametrize(
    ("first", "second", "wanted"),
    [
        (value(0.8, 0.7), value(0.8, 0.6), None),
        (value(0.8, 0.7, std=0.01), value(0.8, 0.6), "± standard deviation over runs"),
        (value(0.8, 0.7, paper_std=0.01), value(0.8, 0.6), "± standard deviation over runs"),
        (value(0.8, 0.7, standard_error=0.02), value(0.8, 0.6), "± standard error over images"),
        (value(0.8, 0.7, std=0.01, standard_error=0.02), value(0.8), "± standard deviation over runs"),
        (
            value(0.8, 0.7, std=0.01),
            value(0.8, 0.6, standard_error=0.02),
            "± standard deviation over runs, with (SE) standard error over images",
        ),
        (value(0.8, None, std=0.01, standard_error=0.02), value(0.8, 0.6), None),
    ],
)
def test_the_legend_says_what_stands_behind_a_sign_that_occurs(tmp_path, first, second, wanted):
    found = summary(part(rows=[row("a", {"natural": first, "pgd": second})]))
    source = texts(tmp_path, found)
    (legend,) = (block for block in source["md"].split("\n\n") if block.startswith("Values in %"))
    assert [word for word in legend.rstrip(".").split("; ") if "±" in word] == ([wanted] if wanted else [])
    for text in (source["md"], source["html"]):
        assert ("±" in text) == bool(wanted)
    assert (r"$\pm$" in source["tex"]) == bool(wanted)
    assert str(terminal_tables(found)[0].caption) == legend


def test_a_standard_error_is_shown_where_there_is_no_standard_deviation(tmp_path):
    values = {"natural": value(None, 2.5, standard_error=0.125), "pgd": value(None, 1.0, std=0.25)}
    (alone,) = markdown_tables(
        texts(tmp_path, summary(part(unit="nats", rows=[row("a", {"natural": values["natural"]})])))["md"]
    )
    assert alone["a"]["natural: ours"] == "2.50 ± 0.12"
    (mixed,) = markdown_tables(texts(tmp_path, summary(part(unit="nats", rows=[row("a", values)])))["md"])
    assert mixed["a"]["natural: ours"] == "2.50 ± 0.12 (SE)"
    assert mixed["a"]["PGD-20: ours"] == "1.000 ± 0.250"


@pytest.mark.parametrize(("precision", "wanted"), [("bf16", "bfloat16"), ("fp32", "float32"), (None, None)])
def test_the_precision_of_the_classifier_is_said_where_it_is_known(tmp_path, precision, wanted):
    for source in texts(tmp_path, summary(part(precision=precision))).values():
        assert ("classifier computed in" in source) == bool(wanted)
        assert f"classifier computed in {wanted}" in source or not wanted


def run(seed=0, commit="a" * 40, version="0.4.0", **machine):
    command = f"vqshield reproduce T2 --seed {seed}"
    return RunMade(seed=seed, commit=commit, version=version, machine=machine, command=command)


def test_every_part_says_what_its_runs_were_made_with_and_then_nothing_is_said_of_all(tmp_path):
    made = [run(5, torch="2.11.0"), run(6, None, "0.5.0", torch="2.12.0"), run(5, torch="2.11.0")]
    found = summary(part(made=made), part(name="other", made=[run(7, "b" * 40)]))
    source = texts(tmp_path, found)
    for text in source.values():
        for gone in ("4bba4c8", "2.13.0", "0.3.0", "a" * 13):
            assert gone not in text
    lines = [line.removeprefix("- ") for line in source["md"].splitlines()]
    for wanted in ("Seed: 5 / 6", f"Commit: {'a' * 12} / unknown", "Version: 0.4.0 / 0.5.0", "Seed: 7"):
        assert lines.count(wanted) == 1
    assert "Machine: torch 2.11.0 / torch 2.12.0" in lines
    assert "Command: vqshield reproduce T2 --seed 5 / vqshield reproduce T2 --seed 6" in lines
    assert any(f"Commit: {'a' * 12} / unknown" in line for line in caveats(found))


def test_a_summary_of_runs_that_are_not_known_part_by_part_says_what_it_knows(tmp_path):
    found = summary(part(made=[]), seed=None, version=None, commit=None, machine=None)
    source = texts(tmp_path, found)["md"]
    assert source.endswith("- Version: unknown\n- Commit: unknown\n- Seed: unknown\n- Time: 1.5 min\n")


def test_hostile_text_stays_text_in_a_page(tmp_path):
    source = texts(tmp_path, hostile(), "table")["html"]
    page = Page(source)
    assert not page.all("script")
    assert not any("onerror" in attributes for _, attributes in page.tags)
    assert page.all("img")[0]["alt"].startswith(HOSTILE)
    for _, attributes in page.tags:
        for name in ("src", "href", "srcset", "action", "data", "poster"):
            assert attributes.get(name, "data:").startswith("data:")
    assert "http://" not in source
    assert "https://" not in source
    assert "url(" not in source


def test_hostile_text_stays_text_in_markdown(tmp_path):
    source = texts(tmp_path, hostile(), "table")["md"]
    tokens = MarkdownIt("commonmark").enable("table").parse(source)
    inner = [child for token in tokens for child in token.children or ()]
    kinds = {token.type for token in (*tokens, *inner)}
    assert not kinds & {"html_block", "html_inline", "link_open", "em_open", "code_inline", "math_inline"}
    assert {child.attrs["src"] for child in inner if child.type == "image"} == {"plot-cifar10.png"}
    (table,) = markdown_tables(source)
    assert HOSTILE in table
    assert f"{HOSTILE}: ours" in table[HOSTILE]
    assert "[x] _y (as published)" in table
    assert re.search(r"(?<!\\)\$", source) is None, "GitHub would set it as a formula"


def test_hostile_text_stays_text_in_latex(tmp_path):
    source = texts(tmp_path, hostile())["tex"]
    body = "\n".join(line for line in source.splitlines() if not line.startswith("%"))
    assert re.search(r"(?<!\\)[%#]", body.replace("[1]{\\textbf{#1}}", "")) is None
    widths = {len(cells) for cells in latex_rows(source)[1:]}
    assert len(widths) == 1, "an unescaped & makes cells"
    assert r"\_under\_ 100\% \$x\textasciicircum{}2\$ \#1 \{a\} \textbackslash{}b \textasciitilde{}" in body
    assert r"$<$script$>$alert(1)$<$/script$>$" in body
    plain = re.sub(r"\\[{}$]", "", body)
    assert plain.count("{") == plain.count("}")
    assert plain.count("$") % 2 == 0
    assert body.isascii()


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (f"a--b {NOTHING} c", "a-{}-b -- c"),
        ("Mądry, Müller, Nuño, Øre", r"Madry, M\"{u}ller, Nu\~{n}o, \O{}re"),
        ("ε ≤ 8/255", r"$\varepsilon$ $\leq$ 8/255"),
        ("[x] * 漢", "{[}x] {*} (U+6F22)"),
        ("“½” ÷ ﬁ", "``1/2'' (U+00F7) fi"),
        ("two\nlines\x00", "two lines"),
    ],
)
def test_latex_is_plain_ascii(text, wanted):
    assert escape_latex(text) == wanted


@pytest.mark.parametrize("text", ["1. x", "- x", "+ x", "2) x", "# x", "> x", "---", "==", "2.13.0", HOSTILE])
def test_markdown_shows_text_as_it_is(text):
    tokens = MarkdownIt("commonmark").enable("table").parse(escape_markdown(text))
    assert [token.type for token in tokens] == ["paragraph_open", "inline", "paragraph_close"]
    assert "".join(child.content for child in tokens[1].children) == text


@pytest.mark.parametrize(
    ("bad", "named"),
    [
        (lambda: summary(part(name="../evil")), "'../evil' does not fit"),
        (lambda: summary(part(), part()), "'cifar10' occurs twice"),
        (
            lambda: summary(part(rows=[row("a", {"pgd": value(None, 71.2)})])),
            r"ours=71.2 of 'a', 'pgd'.*\[0, 1\]",
        ),
        (lambda: summary(part(rows=[row("a", {"pgd": value(None, -0.01)})])), r"ours=-0.01 of.*in \[0, 1\]"),
        (
            lambda: summary(part(rows=[row("a", {"pgd": value(None, 0.5, paired=50)})])),
            r"paired=50 of.*\[0, 1\]",
        ),
        (lambda: summary(gaps(-1.5)), r"ours=-1.5 of.*\[-1, 1\]"),
        (lambda: summary(gaps(0.5, std=-0.1)), "std=-0.1 is not a spread; it should be at least 0"),
        (lambda: value(float("nan")), "paper=nan is not a number"),
        (
            lambda: summary(
                part(
                    gallery=[
                        GalleryRow(label="cat", pictures=[GalleryPicture(caption="", image="http://x/y")])
                    ]
                )
            ),
            "image='http://x/y': expected a data URI",
        ),
    ],
)
def test_what_cannot_be_shown_honestly_is_refused_and_nothing_is_written(tmp_path, bad, named):
    with pytest.raises(InvalidInputError, match=named):
        write_report(bad(), tmp_path / "report")
    assert not (tmp_path / "report").exists()


@pytest.mark.parametrize(
    ("key", "wrong", "named"),
    [
        ("view", "poem", "summary.view is 'poem'; it should be one of table"),
        ("unit", "bits", r"unit is 'bits'; it should be one of %"),
        ("x", "many", r"x is 'many'; it should be a finite number"),
        ("ours", True, r"natural.ours is True; it should be a finite number"),
    ],
)
def test_a_summary_that_means_nothing_is_refused_where_it_is_read(key, wrong, named):
    plain = to_plain(summary())
    assert from_plain(Summary, plain, "summary") == summary()
    first = plain["parts"][0]
    line = first["rows"][0]
    for place in (plain, first, line, line["values"]["natural"]):
        if key in place:
            place[key] = wrong
    with pytest.raises(FileFormatError, match=named):
        from_plain(Summary, plain, "summary")


@pytest.mark.parametrize("package", ["jinja2", "matplotlib"])
def test_without_a_package_the_extra_is_named(monkeypatch, tmp_path, package):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtraError, match=rf"{package} is not installed.*\.\[cli\]"):
        write_report(summary(), tmp_path)


def test_without_rich_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "rich", None)
    with pytest.raises(MissingExtraError, match="rich is not installed"):
        terminal_tables(summary())


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_nothing_is_cut_in_a_terminal(width):
    assert_nothing_is_cut(terminal_tables(summary(part(rows=drawn_at_random())))[0], width)
