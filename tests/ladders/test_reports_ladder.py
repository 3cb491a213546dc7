"""A ladder as a table, a picture and a page: every rung with its cost, a reason where it was not run."""

import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from browser import NAMES, browser, find_browser
from pages import Page
from vqshield.auditing import read_audit
from vqshield.auditing.page import render_audit
from vqshield.ladders.page import (
    headline,
    ladder_lines,
    ladder_notes,
    render_ladder,
)
from vqshield.ladders.plot import ladder_plot
from vqshield.ladders.rungs import RUNGS
from vqshield.ladders.settings import LadderSettings
from vqshield.ladders.study import LadderRow, LadderSummary, NotMeasured, Plan, Subject

RESULTS = Path(__file__).parents[2] / "paper" / "results"
HOSTILE = '"><script>alert(1)</script>[red]'


def row(rung: str, mean: float, subject: str = "model", calls: int | None = None, **more) -> LadderRow:
    tries, seconds = more.pop("tries", (mean, mean / 2)), more.pop("seconds", 12.0)
    return LadderRow(
        subject=subject, rung=rung, calls=calls, used=calls and 0.9 * calls, mean=mean, std=0.01,
        standard_error=0.02, tries=tries, runs=2, n=50, attacks=("square",), seconds=seconds,
    )  # fmt: skip


@pytest.fixture
def summary() -> LadderSummary:
    subjects = (
        Subject(name="model", classifier=HOSTILE, defense="swrd:size=3,codes=25"),
        Subject(name="bare", classifier="net.safetensors", defense="none"),
    )
    rows = [row("natural", 0.9), row("natural", 0.95, "bare", tries=(0.95, 0.95))]
    for calls, left in ((1000, 0.8), (5000, 0.3)):
        rows += [row("score", left, calls=calls), row("score", left / 4, "bare", calls, tries=(0.1, 0.1))]
        rows.append(row("decision", left + 0.1, calls=calls))
    rows.append(row("white-box", 0.0321, seconds=None))
    return LadderSummary(
        title="A ladder", complete=False, tries=(1, 2), rows=tuple(rows), audit="not run", data="cifar10",
        images=50, machine={"torch": "2.0"},
        plan=Plan(
            subjects=subjects, settings=LadderSettings(), training_seconds={},
            not_measured=(
                NotMeasured(subject="model", rung="transfer", reason="no source was given"),
                NotMeasured(subject="bare", rung="transfer", reason="no source was given"),
            ),
        ),
    )  # fmt: skip


def test_a_line_per_rung_and_number_of_calls_and_a_reason_where_there_is_no_figure(summary) -> None:
    lines = ladder_lines(summary)
    assert [(line.rung.name, line.calls) for line in lines] == [
        ("natural", None), ("transfer", None), ("ignorant", None), ("score", 1000), ("score", 5000),
        ("decision", 1000), ("decision", 5000), ("grey-box", None), ("white-box", None),
    ]  # fmt: skip
    assert lines[1].figures == ("no source was given",) * 2
    assert lines[2].figures == ("not finished",) * 2
    assert lines[5].figures == (row("decision", 0.9, calls=1000), "not finished")
    calls = [record["calls"] for record in summary.table.records()]
    assert calls == [0, 0, 0, 1000, 5000, 1000, 5000, 0, 0]


@pytest.mark.parametrize("width", [60, 100])
def test_the_table_shows_every_figure_with_what_it_costs(summary, width: int) -> None:
    stream = io.StringIO()
    Console(file=stream, width=width).print(summary.table.terminal())
    text = stream.getvalue()
    assert "attacks: linf, eps 8/255;" in " ".join(text.split())
    for shown in ("90.0 ± 2.0", "80.0 ± 2.0", "7.5 ± 2.0", "3.2 ± 2.0", "not run", "1,000", "12", "scores"):
        assert shown in text
    assert "…" not in text


def test_the_notes_say_what_was_not_run_not_finished_and_not_audited(summary) -> None:
    notes = ladder_notes(summary)
    assert "The ladder is not finished: these are the results so far." in notes
    assert "transfer not run for model, bare: no source was given." in notes
    assert ("bare", "net.safetensors, no defense") in summary.table.facts
    assert notes[-1].startswith("Audit: not run.")
    again = [note for note in notes if "may be sent 2 times" in note]
    assert len(again) == 1
    assert "from 90.0 % to 45.0 %" in again[0]
    steady = [replace(row, tries=(row.mean, row.mean)) for row in summary.rows]
    calm = ladder_notes(replace(summary, rows=tuple(steady)))
    assert not any("may be sent" in note for note in calm), "only where a further try can turn out otherwise"


def test_the_headline_has_the_clean_and_the_lowest_accuracy(summary) -> None:
    assert headline(summary) == "swRD: 90.0 % clean, 3.2 % under its strongest attacker (adaptive white-box)"
    assert headline(replace(summary, rows=())) == "A ladder"


def test_another_norm_has_its_own_budget_and_an_unusual_one_a_warning(summary) -> None:
    assert LadderSettings(norm="l2").eps == 0.5
    assert not any("WARNING" in note for note in ladder_notes(summary))
    small = replace(summary.plan, settings=LadderSettings(norm="l2", eps=8 / 255))
    (warning,) = [note for note in ladder_notes(replace(summary, plan=small)) if "WARNING" in note]
    assert "l2, eps 0.0313725 is outside the usual budgets of l2" in warning


def test_the_page_holds_every_figure_and_nothing_from_elsewhere(summary) -> None:
    source = render_ladder(summary)
    page = Page(source)
    text = " ".join(" ".join(page.text).split())
    assert "attacks: linf, eps 8/255;" in text
    for shown in ("90.0", "7.5", "3.2", "model, bare: no source was given.", "may be sent several times"):
        assert shown in text
    for rung in RUNGS:
        assert f"knows {rung.knows}" in text
    assert page.all("script") == []
    assert HOSTILE in "".join(page.text)
    assert {each["src"].partition(",")[0] for each in page.all("img")} == {"data:image/svg+xml;base64"}


def test_pages_fit_a_phone_without_a_complaint(tmp_path: Path) -> None:
    path = find_browser()
    if path is None:
        pytest.skip(f"no browser: none of {', '.join(NAMES)} is installed")
    (tmp_path / "ladder.html").write_text(
        render_ladder(LadderSummary.read(RESULTS / "ladder-cifar10-resnet18"))
    )
    essential = RESULTS / "leaderboard-cifar10-resnet18" / "rows" / "essential" / "audit" / "audit.json"
    (tmp_path / "audit.html").write_text(render_audit(read_audit(essential)))
    with browser(path) as window:
        for name, most in (("ladder.html", 6000), ("audit.html", 4000)):
            page = window.open(tmp_path / name, width=390)
            assert page.evaluate("document.documentElement.scrollWidth") == 390
            assert page.evaluate("document.documentElement.scrollHeight") < most
            assert page.complaints == []


def test_the_same_ladder_gives_the_same_picture(summary) -> None:
    first, again = ladder_plot(summary, "text"), ladder_plot(summary, "text")
    assert (first.svg, first.png) == (again.svg, again.png)
    assert first.stacked_svg != first.svg


def test_a_document_gets_the_same_figures(summary) -> None:
    lines = summary.table.without("needs").markdown().splitlines()
    assert lines[0] == "| attacker | knows | model | bare | calls | seconds |"
    assert len(lines) == 2 + len(ladder_lines(summary)) + 2
    assert {line.count("|") for line in lines[:-2]} == {7}
    assert lines[-1].endswith("bare: net.safetensors, no defense.")
    assert "swRD (s=3, k=25); bare" in lines[-1]
