"""The leaderboard: rows in folders of their own, stopped and continued, added to, and shown with links."""

import json
import shlex
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from browser import NAMES, Browser, browser, find_browser
from pages import Page
from vqshield.auditing import AuditSettings
from vqshield.cli.application import app
from vqshield.core.errors import InvalidInputError
from vqshield.ladders.black_box import BlackBoxStudy
from vqshield.ladders.settings import LadderSettings
from vqshield.leaderboards.page import PAGE, SUMMARY, board_notes, render_board, write_board
from vqshield.leaderboards.rows import BoardRow, read_rows
from vqshield.leaderboards.study import BoardSettings, BoardSummary, leaderboard

FEW = BoardSettings(
    ladder=LadderSettings(
        calls=(100,), draws=(1,), suite="pgd:steps=1", ignorant="pgd:steps=1,surrogate=none",
        transfer="pgd:steps=1", runs=2, selection=1, batch=2,
    ),
    audit=AuditSettings(runs=1, queries=2, directions=1, draws=4, probe="pgd:steps=1", rehearsal=True),
)  # fmt: skip
ROWS = ("bare", BoardRow(name="mine", defense="prd:codes=4,iterations=1", paper="<b>a paper</b>"))


def _run(out: Path, rows=ROWS, settings: BoardSettings = FEW) -> BoardSummary:
    return leaderboard(out, rows, settings=settings, limit=1, device="cpu")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, BoardSummary]:
    """A board that was stopped in its second row's queries, and then continued."""
    out = tmp_path_factory.mktemp("board")
    measure = BlackBoxStudy.measure

    def interrupted(self, cell, *more):
        if self.defense != "none" and cell.attack.startswith("rays"):
            raise KeyboardInterrupt
        return measure(self, cell, *more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BlackBoxStudy, "measure", interrupted)
        with pytest.raises(KeyboardInterrupt):
            _run(out)
    partial = BoardSummary.read(out)
    assert not partial.complete
    bare, mine = partial.rows
    assert bare.complete
    assert (mine.figure("decision"), mine.audit, mine.cost) == (None, None, None)
    assert "The board is not finished" in board_notes(partial)[0]
    assert "not run yet" in render_board(partial)
    with pytest.MonkeyPatch.context() as patch:  # what is done is not done again

        def second_alone(self, cell, *more):
            assert cell.attack.startswith("rays")
            return measure(self, cell, *more)

        patch.setattr(BlackBoxStudy, "measure", second_alone)
        summary = _run(out)
    assert summary.row("bare") == bare
    write_board(out, summary)
    return out, summary


def test_every_row_has_its_figures_audit_and_cost(finished: tuple[Path, BoardSummary]) -> None:
    out, summary = finished
    bare, mine = summary.rows
    assert summary.complete
    assert (summary.images, summary.sources) == (1, ("small-cifar10",))
    assert [each.rung for each in mine.figures] == ["natural", "ignorant", "score", "decision", "white-box"]
    assert mine.not_run == {"transfer": "the only source is this very classifier"}
    assert bare.not_run["ignorant"].startswith("there is no shield")
    for row in summary.rows:
        assert row.lowest is not None
        assert row.lowest.mean == min(each.mean for each in row.figures if each.rung != "natural")
        assert row.audit is not None
        assert row.cost is not None
        assert (row.audit.n, row.audit.verdict != "passed") == (1, True), "one image shows nothing"
        assert row.cost.model_ms > row.cost.defense_ms
    assert bare.cost.defense_ms == 0.0
    held = json.loads((out / SUMMARY).read_text())
    assert held == json.loads(json.dumps(summary.plain()))
    assert list(held["rows"][1]["figures"][0]) == [
        "mean", "standard_error", "runs", "n", "rung", "calls", "used", "seconds", "records"
    ]  # fmt: skip


def test_the_page_leads_to_a_page_for_each_row_and_that_to_its_records(
    finished: tuple[Path, BoardSummary],
) -> None:
    out, summary = finished
    source = (out / PAGE).read_text()
    links = [each["href"] for each in Page(source).all("a")]
    assert all((out / link).is_file() for link in links), links
    for result in summary.rows:
        home = f"rows/{result.row.name}"
        assert links.count(f"{home}/row.html") == 2, "from the plot, and from the table"
        assert links.count(f"{home}/audit/audit.html") == 1
        page = Page((out / home / "row.html").read_text())
        behind = {each["href"] for each in page.all("a") if not each["href"].startswith("https:")}
        assert {f"{home}/{link}" for link in behind} >= {*result.files.values(), f"{home}/audit/audit.html"}
        assert all((out / home / link).is_file() for link in behind)
    assert source.count('<span class="badge">baseline</span>') == 1
    assert "<b>a paper" not in (out / "rows/mine/row.html").read_text(), "what a row says is text"
    assert str(out) not in source + (out / SUMMARY).read_text(), "no path of this machine"
    markdown = (out / "leaderboard.md").read_text()
    assert "no defense (baseline)" in markdown
    assert "(rows/mine/audit/audit.html)" in markdown


def test_the_page_of_a_row_says_how_to_measure_it(
    finished: tuple[Path, BoardSummary], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command and the file that it shows are read as they stand."""
    out, summary = finished
    monkeypatch.chdir(tmp_path)
    row = Page((out / "rows" / "mine" / "row.html").read_text())
    text = "".join(row.text)
    toml = text[text.index('name = "mine"') :]
    (tmp_path / "mine.toml").write_text(toml[: toml.index("vqshield")])
    assert read_rows(["mine.toml"]) == [summary.rows[1].row]
    command = shlex.split(next(part for part in row.text if part.startswith("vqshield leaderboard")))
    seen = {}
    monkeypatch.setattr(
        "vqshield.cli.derived.Values.call", lambda self, _, **given: seen.update(self, **given)
    )
    CliRunner().invoke(app, command[1:])
    assert seen["settings"].ladder.suite == FEW.ladder.suite
    assert (seen["settings"].ladder.calls, seen["settings"].ladder.runs) == ((100,), 2)
    assert (seen["data"], seen["limit"], *seen["sources"]) == ("cifar10-sample", 1, "small-cifar10")


def test_a_failed_audit_marks_the_figures_and_ranks_last(finished: tuple[Path, BoardSummary]) -> None:
    _, summary = finished
    bare, mine = summary.rows
    rows = tuple(replace(row, mean=0.9) for row in mine.ladder.rows)
    flags = tuple(replace(flag, outcome="fail" if flag.name == "R4" else "pass") for flag in mine.audit.flags)
    fake = replace(
        mine, ladder=replace(mine.ladder, rows=rows), audit=replace(mine.audit, passed=False, flags=flags)
    )
    source = render_board(replace(summary, rows=(fake, bare)))
    shown = [each["data-value"] for each in Page(source).all("th") if "data-value" in each]
    assert shown == [bare.row.shown, mine.row.shown]
    assert 'class="doubted"' in source
    assert "doubtful" in source
    assert "mine: its audit failed (R4 fail)" in source


def test_another_board_or_another_row_of_that_name_is_refused(finished: tuple[Path, BoardSummary]) -> None:
    out, _ = finished
    before = (out / "board.json").read_bytes()
    with pytest.raises(
        InvalidInputError,
        match=r"made with settings\.audit_images=100, this run has settings\.audit_images=1",
    ):
        _run(out, settings=replace(FEW, audit_images=1))
    with pytest.raises(InvalidInputError, match="another row 'mine', prd:codes=4"):
        _run(out, [BoardRow(name="mine", defense="jpeg")])
    with pytest.raises(InvalidInputError, match=r"row 'wide': .*size=40"):
        _run(out, [BoardRow(name="wide", defense="median:size=40")])
    assert (out / "board.json").read_bytes() == before


def test_the_command_sums_up_a_folder(finished: tuple[Path, BoardSummary]) -> None:
    out, _ = finished
    result = CliRunner(env={"COLUMNS": "140"}).invoke(
        app, ["leaderboard", "--render-only", "--out", str(out)]
    )
    assert result.exit_code == 0, result.output
    assert "no defense (baseline)" in result.stdout
    for text in (result.stdout, (out / "leaderboard.md").read_text(), (out / PAGE).read_text()):
        assert "linf, eps 8/255" in text
    assert PAGE in result.stdout
    wrong = CliRunner().invoke(app, ["leaderboard", "nothing.toml", "--out", str(out)])
    assert wrong.exit_code == 2
    assert "nothing.toml is not a file" in wrong.stderr


@pytest.fixture(scope="module")
def window() -> Iterator[Browser]:
    path = find_browser()
    if path is None:
        pytest.skip(f"no browser: none of {', '.join(NAMES)} is installed")
    with browser(path) as found:
        yield found


def clicked(page, heading: str) -> list[str]:
    """What the rows are called after a click on that heading."""
    return page.evaluate(
        f"[...document.querySelectorAll('thead button')].find(it => it.innerText == '{heading}').click(),"
        "[...document.querySelectorAll('tbody th')].map(each => each.dataset.value)"
    )


def test_a_click_on_a_heading_sorts(
    window: Browser, finished: tuple[Path, BoardSummary], tmp_path: Path
) -> None:
    bare, mine = finished[1].rows
    fast, slow = (replace(bare.cost, model_ms=time) for time in (9.5, 10.0))
    third = replace(bare, row=replace(bare.row, name="third", title="a third"), cost=None)
    last, first = bare.row.shown, mine.row.shown
    rows = (replace(bare, cost=slow), replace(mine, cost=fast), third)
    (tmp_path / PAGE).write_text(render_board(replace(finished[1], rows=rows)))
    page = window.open(tmp_path / PAGE, width=1280)
    assert clicked(page, "ms") == [first, last, "a third"], "by number, and what has none last"
    assert clicked(page, "ms") == [last, first, "a third"]
    assert clicked(page, "defense") == ["a third", last, first], "by title"
    assert page.evaluate("document.querySelectorAll('[aria-sort]').length") == 1
    assert page.complaints == []
    assert [each for each in page.requests if not each.startswith(("file:", "data:"))] == []
    assert window.open(tmp_path / PAGE, width=400).evaluate("document.documentElement.scrollWidth") <= 400
    assert window.open(tmp_path / PAGE, width=1280).evaluate("document.documentElement.scrollWidth") <= 1280


def shown(page, what: str) -> list[str]:
    """The rows, or the marks of the plot, that are visible."""
    return page.evaluate(
        f"[...document.querySelectorAll('{what}')].filter(each => each.getBoundingClientRect().height)"
        ".map(each => each.dataset.value || each.getAttribute('href'))"
    )


def test_boxes_filter_rows_and_marks_and_a_list_sorts_on_a_phone(
    window: Browser, finished: tuple[Path, BoardSummary], tmp_path: Path
) -> None:
    bare, mine = finished[1].rows
    fast, slow = replace(bare.cost, model_ms=1.0), replace(bare.cost, model_ms=2.0)
    rows = (replace(bare, cost=slow), replace(mine, cost=fast))
    (tmp_path / PAGE).write_text(render_board(replace(finished[1], rows=rows)))
    page = window.open(tmp_path / PAGE, width=390)
    sort = "list => { list.selectedIndex = list.options.length - 1; list.dispatchEvent(new Event('change')) }"
    page.evaluate(f"({sort})(document.querySelector('.tools select'))")
    titles = [mine.row.shown, bare.row.shown]
    assert shown(page, "tbody th") == titles, "the fastest first"
    assert len(shown(page, ".dot")) == 2
    page.click("[data-badge=baseline]")
    assert shown(page, "tbody th") == titles[:1]
    assert shown(page, ".dot") == ["rows/mine/row.html"]
    page.click("[data-badge=baseline]")
    assert len(shown(page, "tbody th")) == 2
    page.click("#at-ignorant")
    assert shown(page, ".dot") == ["rows/mine/row.html"], "that rung was not run without a defense"
    assert page.complaints == []


COMMITTED = Path(__file__).parents[2] / "paper" / "results" / "leaderboard-cifar10-resnet18"


def test_the_committed_board_is_what_its_records_say() -> None:
    summary = BoardSummary.read(COMMITTED)
    assert summary.plain() == json.loads((COMMITTED / SUMMARY).read_text())
    assert (COMMITTED / PAGE).read_text() == render_board(summary)
    assert summary.images >= 500
    controls = {"bare", "gaussian", "bitdepth", "median", "jpeg", "resizepad", "tv", "essential"}
    assert {*controls, "gaussian-tuned", "adversarial"} == {
        each.row.name for each in summary.rows if each.row.control
    }
    assert summary.complete
    assert {each.row.name for each in summary.rows if each.audit.verdict != "passed"} == {"essential"}
    links = {each["href"] for each in Page((COMMITTED / PAGE).read_text()).all("a")}
    assert len(links) == 2 * len(summary.rows)
    assert [each for each in links if not (COMMITTED / each).is_file()] == []


def test_the_committed_board_sorts_without_a_complaint(window: Browser) -> None:
    phone = window.open(COMMITTED / PAGE, width=390)
    assert phone.evaluate("document.documentElement.scrollHeight") < 6000
    assert phone.evaluate("document.documentElement.scrollWidth") == 390
    page = window.open(COMMITTED / PAGE, width=1280)
    natural = clicked(page, "clean")
    summary = BoardSummary.read(COMMITTED)
    accuracies = {each.row.shown: each.figure("natural").mean for each in summary.rows}
    assert natural == sorted(natural, key=lambda name: -accuracies[name])
    assert len(natural) == len(summary.rows)
    assert page.complaints == []
