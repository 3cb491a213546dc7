"""The demo: what it measures, what it writes, and what it keeps where it is stopped."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from vqshield.cli.application import app
from vqshield.demo.study import Demo, DemoSettings

QUICK = ["--limit", "10", "--steps", "2", "--eot", "1", "--samples", "2", "--calls", "12"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    out = tmp_path_factory.mktemp("demo")
    result = CliRunner().invoke(app, ["demo", "--out", str(out), *QUICK])
    assert result.exit_code == 0, result.output
    return out, result.output


def test_summary_has_a_row_for_every_defense_and_threat(finished: tuple[Path, str]) -> None:
    summary = json.loads((finished[0] / "summary.json").read_text())
    assert summary["complete"] is True
    assert [(row["defense"], row["threat"]) for row in summary["rows"]] == [
        (defense, threat)
        for defense in (
            "none",
            "RandDisc",
            "pRD",
            "swRD",
            "swRD, calibrated",
            "swRD with noise, tuned classifier",
        )
        for threat in ("none", "transfer", "ignorant", "score", "adaptive")
    ]
    for row in summary["rows"]:
        assert {"defense", "threat", "attack", "natural", "robust", "standard_error", "n"} <= set(row)
        assert 0 <= row["robust"] <= 1
        assert row["n"] == 10
        assert row["threat"] != "none" or row["robust"] == row["natural"]
    assert summary["machine"]["torch"]
    assert len(summary["sentences"]) == 5


def test_the_bundled_classifier_is_good_and_the_attacks_bite(finished: tuple[Path, str]) -> None:
    rows = json.loads((finished[0] / "summary.json").read_text())["rows"]
    robust = {(row["defense"], row["threat"]): row["robust"] for row in rows}
    assert robust["none", "none"] >= 0.8
    assert robust["none", "ignorant"] < robust["none", "none"]


def test_page_and_terminal_show_the_figures_and_the_pictures(finished: tuple[Path, str]) -> None:
    page = (finished[0] / "report.html").read_text()
    assert page.count("data:image/png;base64,") == 6 * 6
    for text in ("attacked through swRD, then swRD", "who expects it", "RandDisc"):
        assert text in page
    assert "report.html" in finished[1]
    for shown in (finished[1], page):
        figures = shown.index("RandDisc")
        assert (
            shown.index("For: models behind an interface")
            < shown.index("Not for: models whose weights")
            < figures
        )
        assert "vqshield harden --defense none --method adversarial" in shown
    assert "square, 12 calls" in page


def test_every_column_is_of_the_same_images_with_the_standard_error_over_them() -> None:
    run = Demo(DemoSettings(limit=60, steps=1, eot=1, samples=1, calls=10))
    run._measure("none", run.classifier, None, ignorant=run.images, transfer=run.images)
    right = (run.classifier(run.images).argmax(1) == run.labels).double()
    assert 0 < right.mean() < 1
    assert [row.threat for row in run.rows] == ["none", "transfer", "ignorant", "score", "adaptive"]
    for row in run.rows:
        assert row.n == 60
        assert row.natural == pytest.approx(right.mean().item())
        if row.threat != "score":
            assert row.standard_error == pytest.approx(right.std().item() / 60**0.5)
    (asked,) = [row for row in run.rows if row.threat == "score"]
    assert asked.robust <= asked.natural
    assert asked.attack == "square, 10 calls"


def test_equal_seeds_give_equal_figures_and_other_seeds_others() -> None:
    def figures(seed: int) -> list[tuple[float, float]]:
        run = Demo(DemoSettings(limit=6, steps=1, eot=1, samples=3, calls=10, seed=seed))
        run.run()
        return [(row.robust, row.standard_error) for row in run.rows]

    first = figures(1)
    assert figures(1) == first
    assert figures(2) != first


def test_the_progress_bar_ends_at_the_whole_and_never_goes_back() -> None:
    told: list[tuple[int, int]] = []
    settings = DemoSettings(limit=3, steps=2, eot=3, samples=2, calls=20)
    Demo(settings, lambda _, done, total: told.append((done, total))).run()
    done = [each for each, _ in told]
    assert done == sorted(done)
    assert {total for _, total in told} == {3 * (4 + 24 + 5 * (6 + 20 + 10))}
    assert done[0] == 3
    assert done[-1] > 0.9 * told[-1][1]


def test_an_interrupted_demo_keeps_what_is_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Demo._measure

    def interrupted(self: Demo, defense: str, *rest: object, **named: object) -> None:
        if defense == "pRD":
            raise KeyboardInterrupt
        whole(self, defense, *rest, **named)

    monkeypatch.setattr(Demo, "_measure", interrupted)
    result = CliRunner().invoke(app, ["demo", "--out", str(tmp_path), *QUICK])
    assert result.exit_code == 130
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["complete"] is False
    assert {row["defense"] for row in summary["rows"]} == {"none", "RandDisc"}
    assert "RandDisc" in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize("option", ["--limit", "--steps", "--eot", "--samples", "--calls"])
def test_nonsense_is_refused_by_name(option: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["demo", "--out", str(tmp_path / "out"), option, "0"])
    assert result.exit_code == 2
    assert f"{option.removeprefix('--')}=0 should be" in result.stderr
    assert not (tmp_path / "out").exists()


def test_json_output_is_the_summary(tmp_path: Path) -> None:
    result = CliRunner().invoke(
        app,
        [
            "demo",
            "--out",
            str(tmp_path),
            "--json",
            "--limit",
            "2",
            "--steps",
            "1",
            "--samples",
            "1",
            "--calls",
            "10",
        ],
    )
    assert json.loads(result.stdout)["rows"] == json.loads((tmp_path / "summary.json").read_text())["rows"]
