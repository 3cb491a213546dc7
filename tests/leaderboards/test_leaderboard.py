"""The leaderboard: rows in folders of their own, stopped and continued, added to, and shown with links."""

import json
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
from vqshield.leaderboards.rows import BoardRow
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


def test_the_page_leads_from_every_figure_to_files_that_exist(finished: tuple[Path, BoardSummary]) -> None:
    out, summary = finished
    source = (out / PAGE).read_text()
    links = [each["href"] for each in Page(source).all("a")]
    assert all((out / link).is_file() for link in links), links
    for result in summary.rows:
        records = [result.records(each) for each in (*result.figures, result.lowest)]
        assert {*records} <= {*links}
        attacked = len(result.figures)  # all but natural, and the lowest
        page = f"rows/{result.row.name}/audit/audit.html"
        assert links.count(page) == attacked + 1, "each robust figure, and the audit's own cell"
    assert source.count('<span class="badge">control</span>') == 1
    assert "<b>a paper" not in source, "a row is anybody's: what it says is text"
    assert str(out) not in source + (out / SUMMARY).read_text(), "no path of this machine"
    markdown, mine = (out / "leaderboard.md").read_text(), summary.rows[1]
    assert "no defense (control)" in markdown
    assert all(mine.records(each) in markdown for each in mine.figures)


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
    assert "no defense (control)" in result.stdout
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
    third = replace(bare, row=replace(bare.row, name="third"), cost=None)
    rows = (replace(bare, cost=slow), replace(mine, cost=fast), third)
    (tmp_path / PAGE).write_text(render_board(replace(finished[1], rows=rows)))
    page = window.open(tmp_path / PAGE)
    assert clicked(page, "Time") == ["mine", "bare", "third"], "by number, and what has none last"
    assert clicked(page, "Time") == ["bare", "mine", "third"]
    assert clicked(page, "Defense")[-1] == "mine", "no defense before pRD"
    assert page.evaluate("document.querySelectorAll('[aria-sort]').length") == 1
    assert page.complaints == []
    assert [each for each in page.requests if not each.startswith(("file:", "data:"))] == []
    assert window.open(tmp_path / PAGE, width=400).evaluate("document.documentElement.scrollWidth") <= 400
    assert window.open(tmp_path / PAGE, width=1280).evaluate("document.documentElement.scrollWidth") <= 1280


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
    links = {each for each in links if not each.startswith("http")}
    assert len(links) > 3 * len(summary.rows)
    assert [each for each in links if not (COMMITTED / each).is_file()] == []


def test_the_committed_board_sorts_without_a_complaint(window: Browser) -> None:
    page = window.open(COMMITTED / PAGE)
    natural = clicked(page, "Natural")
    summary = BoardSummary.read(COMMITTED)
    accuracies = {each.row.name: each.figure("natural").mean for each in summary.rows}
    assert natural == sorted(natural, key=lambda name: -accuracies[name])
    assert len(natural) == len(summary.rows)
    assert page.complaints == []
