"""`vqshield compare`: a table and what differs, or JSON; other images and folders end with 2."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import vqshield as vq
from vqshield.cli.application import app


def compare(*arguments: object) -> Any:
    return CliRunner(env={"COLUMNS": "160"}).invoke(app, ["compare", *map(str, arguments)])


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("compare")
    for name, defense, limit in (("a", "prd", 6), ("b", "swrd", 6), ("c", "prd", 5)):
        vq.evaluate(defense=defense, limit=limit, samples=2, out=home / name)
    return home


def test_two_runs_next_to_each_other(runs: Path) -> None:
    shown = compare(runs / "a", runs / "b")
    assert shown.exit_code == 0, shown.output
    for text in ("before", "after", "change", "p (worse)", "clean", "defenses.0.name: prd → swrd"):
        assert text in shown.stdout
    found = json.loads(compare(runs / "a", runs / "b", "--json").stdout)
    assert [row["attack"] for row in found["rows"]] == ["clean", "clean"]
    assert found["images"] == 6


@pytest.mark.parametrize(
    ("second", "message"), [("c", "not the same"), ("d", "no run was started there"), ("a/../..", "no run")]
)
def test_what_cannot_be_compared_ends_with_2(second: str, message: str, runs: Path) -> None:
    result = compare(runs / "a", runs / second)
    assert result.exit_code == 2
    assert message in result.stderr
