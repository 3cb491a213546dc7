"""`vqshield ladder`: a table, a page, and records that a second call finds."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from vqshield.cli.application import app

QUICK = [
    "--quick", "--device", "cpu", "--limit", "1", "--samples", "2", "--calls", "100",
    "--attack", "pgd:steps=1", "--defense", "prd:codes=4,iterations=1",
]  # fmt: skip


def ladder(*arguments: str):
    return CliRunner(env={"COLUMNS": "120"}).invoke(app, ["ladder", *arguments])


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    out = tmp_path_factory.mktemp("ladder") / "out"
    result = ladder(*QUICK, "--out", str(out))
    assert result.exit_code == 0, result.output
    return out, result.stdout


def test_table_page_and_summary(finished: tuple[Path, str]) -> None:
    out, text = finished
    for shown in (
        "decision-based queries, 100 calls",
        "white-box",
        "not run",
        "grey-box not run for model, bare",
    ):
        assert shown in text
    summary = json.loads((out / "summary.json").read_text())
    assert summary["complete"] is True
    assert {row["rung"] for row in summary["rows"]} >= {"transfer"}, "from the other bundled network"
    assert summary["plan"]["settings"]["calls"] == [100]
    assert "score-based queries, 100 calls" in (out / "report.html").read_text()


def test_a_second_call_finds_all_done_and_json_is_the_summary(
    finished: tuple[Path, str], monkeypatch
) -> None:
    out, _ = finished
    monkeypatch.setattr("vqshield.evaluation.study.Evaluation.measure", None)
    monkeypatch.setattr("vqshield.ladders.black_box.BlackBoxStudy.measure", None)
    for more in ([*QUICK], ["--render-only"]):
        result = ladder(*more, "--out", str(out), "--json")
        assert result.exit_code == 0, result.output
        assert json.loads(result.stdout) == json.loads((out / "summary.json").read_text())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--control", "noise"], "control 'noise' should be NAME=CLASSIFIER"),
        (["--source", "nowhere.safetensors"], "nowhere.safetensors"),
        (["--eps", "8"], "Did you mean 8/255?"),
        (["--attack", "adaptive-v9"], "attack='adaptive-v9' is unknown"),
        (["--defense", "swrd:size=40"], "size=40"),
        (["--control", "a=small-cifar10", "--control", "a=small-cifar10"], "a name of its own"),
    ],
)
def test_nonsense_is_refused_at_once(tmp_path: Path, arguments: list[str], message: str) -> None:
    result = ladder("--quick", "--limit", "1", "--device", "cpu", *arguments, "--out", str(tmp_path / "out"))
    assert result.exit_code == 2, result.output
    assert message in result.stderr
    assert result.stderr.splitlines()[-1].startswith("error: ")
    assert not (tmp_path / "out").exists(), "the right command should find no trace of the wrong one"
