"""Progress in a log, starting over, and what is answered to a budget in bytes."""

import io
import logging
from pathlib import Path

import pytest
from rich.console import Console
from rich.text import Text
from typer.testing import CliRunner

from vqshield.cli.application import app
from vqshield.cli.bars import EVERY, LogLines, progress_bar, state

FEW = ["--device", "cpu", "--defense", "none", "--samples", "1"]


def run(*arguments: str):
    return CliRunner(env={"COLUMNS": "120"}).invoke(app, [*arguments])


def test_a_log_gets_a_line_now_and_then_and_one_at_the_end(caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    caplog.set_level(logging.INFO, logger="vqshield")
    lines = LogLines(clock=lambda: now[0])
    for second, done in ((0, 0), (1, 5), (EVERY, 25), (EVERY + 1, 26), (2 * EVERY, 50)):
        now[0] = float(second)
        lines.report("swrd, pgd", done, 100)
    lines.close()
    assert caplog.messages == [
        "swrd, pgd: 25 % · 0:30 elapsed · 1:30 left",
        "swrd, pgd: 50 % · 1:00 elapsed · 1:00 left",
        "swrd, pgd: 50 % · 1:00 elapsed · 1:00 left",
    ]


def test_what_an_earlier_run_had_done_does_not_count_for_the_pace() -> None:
    assert state(60, 100, 664) == "60 % · 11:04 elapsed · 7:23 left"
    assert state(60, 100, 600, before=40) == "60 % · 10:00 elapsed · 20:00 left"
    assert state(40, 100, 0, before=40) == "40 % · 0:00 elapsed · -:-- left"
    assert state(3, None, 3700) == "3 done · 1:01:40 elapsed"


def test_a_long_label_is_cut_and_the_times_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    console = Console(width=80, file=io.StringIO(), force_terminal=True)
    monkeypatch.setattr("vqshield.cli.bars.Console", lambda **_: console)
    with progress_bar(hidden=False) as report:
        report("swrd:size=3,codes=25,sigma=4/255,tau=4/255, adaptive-v1/soft-margin, images 100 to 200", 1, 4)
    last = Text.from_ansi(console.file.getvalue()).plain.strip().splitlines()[-1]
    assert last.startswith("swrd:size=3,codes=25")
    assert "…" in last
    assert "25 % · 0:00 elapsed · -:-- left" in last
    assert len(last) <= 80


def test_verbose_tells_of_every_step(tmp_path: Path) -> None:
    quiet = run("evaluate", *FEW, "--limit", "2", "--out", str(tmp_path / "a"))
    told = run("--verbose", "evaluate", *FEW, "--limit", "2", "--out", str(tmp_path / "b"))
    assert (quiet.exit_code, told.exit_code) == (0, 0)
    assert "none: 2 records in" in told.stderr
    assert "records in" not in quiet.stderr


def test_other_settings_are_refused_with_both_ways_out_and_fresh_sets_aside(tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert run("evaluate", *FEW, "--limit", "2", "--out", str(out)).exit_code == 0
    refused = run("evaluate", *FEW, "--limit", "3", "--out", str(out))
    assert refused.exit_code == 2
    assert "data.images=2" in refused.stderr
    assert "choose another folder, or start over (--fresh)" in refused.stderr
    again = run("evaluate", *FEW, "--limit", "3", "--out", str(out), "--fresh")
    assert again.exit_code == 0
    assert (tmp_path / "out.1" / "records.jsonl").is_file(), "nothing that was measured is lost"
    assert len((out / "records.jsonl").read_text().splitlines()) == 3


@pytest.mark.parametrize("command", ["evaluate", "audit", "certify"])
def test_a_budget_in_bytes_is_answered_with_the_fraction(command: str, tmp_path: Path) -> None:
    attack = ["--attack", "pgd"] if command == "evaluate" else []
    result = run(command, *attack, "--eps", "8", "--out", str(tmp_path / "out"))
    assert result.exit_code == 2
    assert "Did you mean 8/255?" in result.stderr


def test_experiments_in_any_case_and_several(tmp_path: Path) -> None:
    result = run("reproduce", "e1", "E1", "--dry-run", "--out", str(tmp_path))
    assert result.exit_code == 0, result.output
    wrong = run("reproduce", "T22", "--dry-run", "--out", str(tmp_path))
    assert "Did you mean 'T2'?" in wrong.stderr
