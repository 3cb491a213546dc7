"""Progress in a log, starting over, and what is answered to a budget in bytes."""

import logging
from pathlib import Path

import pytest
from typer.testing import CliRunner

from vqshield.cli.application import app
from vqshield.cli.bars import EVERY, LogProgress

FEW = ["--device", "cpu", "--defense", "none", "--runs", "1"]


def run(*arguments: str):
    return CliRunner(env={"COLUMNS": "120"}).invoke(app, [*arguments])


def test_a_log_gets_a_line_now_and_then_and_one_at_the_end(caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    caplog.set_level(logging.INFO, logger="vqshield")
    with LogProgress("{task.description}", clock=lambda: now[0]) as progress:
        task = progress.add_task("swrd, pgd", total=100)
        for second, done in ((1, 5), (EVERY, 25), (EVERY + 1, 26), (2 * EVERY, 50)):
            now[0] = float(second)
            progress.update(task, completed=done)
    assert caplog.messages == [
        "swrd, pgd: 25 of 100 done (25%), 90 s left, after 30 s",
        "swrd, pgd: 50 of 100 done (50%), 60 s left, after 60 s",
        "swrd, pgd: 50 of 100 done (50%), 60 s left, after 60 s",
    ]


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
