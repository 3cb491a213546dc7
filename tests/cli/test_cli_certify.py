"""`vqshield certify`: tables with their caveats, records that survive a stop, nonsense refused at once."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from vqshield.certification.study import Certification
from vqshield.cli.application import app

IMAGES = ["--device", "cpu", "--limit", "3", "--batch", "20"]
QUICK = [*IMAGES, "--selection", "5", "--samples", "40", "--bound-samples", "10"]
SHIELD = ["--defense", "prd:iterations=2", "--attack", "pgd:steps=1,surrogate=none", "--eps", "2/255"]


def certify(*arguments: str):
    return CliRunner(env={"COLUMNS": "100"}).invoke(app, ["certify", *arguments])


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    out = tmp_path_factory.mktemp("certify") / "out"
    result = certify(*QUICK, *SHIELD, "--out", str(out))
    assert result.exit_code == 0, result.output
    return out, result.stdout


def test_tables_summary_and_records(finished: tuple[Path, str]) -> None:
    out, text = finished
    summary = json.loads((out / "summary.json").read_text())
    assert summary["complete"] is True
    assert len((out / "records.jsonl").read_text().splitlines()) == 3 * 3
    for shown in (
        "worst case in L2", "as L-inf", "sigma_eff", "abstained",
        "Proposition 1", "Clopper–Pearson", "clean: draws right", "at linf, eps 2/255",
        "not for a ball", "every image within the radius",
    ):  # fmt: skip
        assert shown in " ".join(text.split()), shown
    assert "…" not in text
    assert "not finished" not in text


def test_a_finished_run_is_only_summed_up_again(finished: tuple[Path, str], monkeypatch) -> None:
    out, _ = finished
    before = (out / "records.jsonl").read_bytes()
    monkeypatch.setattr(Certification, "measure", None)
    again = certify(*QUICK, *SHIELD, "--out", str(out), "--json")
    assert again.exit_code == 0, again.output
    assert json.loads(again.stdout) == json.loads((out / "summary.json").read_text())
    assert again.stderr == ""
    assert (out / "records.jsonl").read_bytes() == before
    other = certify("--render-only", "--out", str(out), "--json", "--radius", "0.001", "--radius", "0.5")
    curve = json.loads(other.stdout)["vote"]["curve"]
    assert [point["radius"] for point in curve] == [0.001, 0.5]


@pytest.mark.parametrize(
    ("certificate", "absent"), [("vote", "Proposition 1"), ("draws", "worst case in L2")]
)
def test_one_certificate_alone(tmp_path: Path, certificate: str, absent: str) -> None:
    few = {"vote": ["--selection", "5", "--samples", "40"], "draws": ["--bound-samples", "10"]}[certificate]
    result = certify(*IMAGES, *few, *SHIELD[:2], "--certificate", certificate, "--out", str(tmp_path))
    assert result.exit_code == 0, result.output
    assert absent not in result.stdout


def test_another_specification_is_refused_with_both_values(finished: tuple[Path, str]) -> None:
    out, _ = finished
    result = certify(*QUICK, *SHIELD, "--delta", "0.1", "--out", str(out))
    assert result.exit_code == 2
    assert "delta=0.005, this run has delta=0.1" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--defense", "swrd"], ["weights_from='clean'", "weights_from='noisy'", "noise='image'"]),
        (["--defense", "prd:tau=0"], ["tau=0", "without noise"]),
        (["--defense", "none"], ["nothing to certify", "swrd"]),
        (["--defense", "shield9"], ["defense='shield9'", "swrd"]),
        (["--certificate", "hope"], ["certificate='hope'", "all, draws, sequential, vote"]),
        (["--attack", "adaptive-v1"], ["attack='adaptive-v1'", "pgd"]),
        (["--eps", "much"], ["eps='much'", "number"]),
        (["--eps", "1/255", "--eps", "1/255"], ["twice"]),
        (["--bound-samples", "0"], ["bound_samples=0 should be >= 1"]),
        (["--samples", "0"], ["samples=0 should be >= 1"]),
        (["--selection", "0"], ["selection=0 should be >= 1"]),
        (["--alpha", "0"], ["alpha=0"]),
        (["--delta", "1"], ["delta=1"]),
        (["--batch", "0"], ["batch=0"]),
        (["--seed", "-1"], ["seed=-1"]),
        (["--limit", "0"], ["limit=0 should be >= 1"]),
        (["--data", "cifar11"], ["data='cifar11'"]),
        (["--device", "abacus"], ["device='abacus'"]),
        (["--render-only"], ["there is no manifest.json"]),
        (["--norm", "l3"], ["norm='l3'", "l1, l2"]),
        (
            ["--norm", "l1", "--defense", "prd"],
            ["defense='prd' has no L1 certificate", "splitting:scale=0.5"],
        ),
        (["--after", "swrd"], ["--after given without --norm l1"]),
    ],
)
def test_nonsense_is_refused_before_any_work(tmp_path: Path, arguments: list[str], named: list[str]) -> None:
    result = certify("--out", str(tmp_path / "out"), *arguments)
    assert result.exit_code == 2
    assert all(word in result.stderr for word in named), result.stderr
    assert "Traceback" not in result.stderr
    assert not (tmp_path / "out").exists()


def test_ctrl_c_keeps_what_is_finished_and_says_how_to_continue(tmp_path: Path, monkeypatch) -> None:
    whole = Certification.measure

    def interrupted(self, cell, *told):
        if cell.images.start == 1:
            raise KeyboardInterrupt
        return whole(self, cell, *told)

    with monkeypatch.context() as patch:
        patch.setattr(Certification, "measure", interrupted)
        stopped = certify(*QUICK, *SHIELD, "--out", str(tmp_path))
    assert stopped.exit_code == 130
    assert f"interrupted: what is finished is in {tmp_path}; run the same command again" in stopped.stderr
    assert json.loads((tmp_path / "summary.json").read_text())["vote"]["images"] == 1
    assert "not finished" in certify("--render-only", "--out", str(tmp_path)).stdout
    assert certify(*QUICK, *SHIELD, "--out", str(tmp_path)).exit_code == 0
    assert json.loads((tmp_path / "summary.json").read_text())["complete"] is True


def test_the_exact_l1_certificate(tmp_path: Path) -> None:
    asked = ["--norm", "l1", "--defense", "splitting:scale=0.02", "--limit", "2", "--device", "cpu",
             "--radius", "0", "--radius", "0.01", "--out", str(tmp_path)]  # fmt: skip
    result = certify(*asked)
    assert result.exit_code == 0, result.output
    shown = " ".join(result.stdout.split())
    for words in (
        "worst case in L1",
        "8-bit",
        "real-valued",
        "not an L-inf certificate",
        "radius of 96.4 in L1",
    ):
        assert words in shown, words
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert (summary["shifts"], summary["images"]) == (10, 2)
    again = certify("--norm", "l1", "--render-only", "--out", str(tmp_path), "--json", "--radius", "0")
    assert [point["radius"] for point in json.loads(again.stdout)["curve"]] == [0.0]
