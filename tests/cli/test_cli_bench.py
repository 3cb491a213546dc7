"""`vqshield bench`: a record or a table, errors that name what is valid, results kept on Ctrl-C."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from vqshield.bench import BenchRecord, comparison, read_record, run, workloads
from vqshield.bench.record import BenchRow, ClassifierSpeed, Peak
from vqshield.bench.workloads import Workload
from vqshield.cli.application import app

TINY = Workload(name="tiny", side=10, size=2, codes=3, cpu_batch=2)
QUICK = ["bench", "--quick", "--device", "cpu", "--workload", "tiny", "--threads", "1"]
EAGER = ["--implementation", "torch-eager,vqshield-torch"]
PEAK = Peak(threads=1, gflops={"float32": 1.0}, copy_gbytes=1.0, normals=1.0, torch_normals=1.0)
SPEED = ClassifierSpeed(
    classifier="resnet18",
    form="eager",
    precision="float32",
    threads=1,
    batch=1,
    images_per_second=1.0,
    forms={"eager": 1.0},
    failed={},
)


def invoke(*arguments: str):
    return CliRunner(env={"COLUMNS": "100"}).invoke(app, list(arguments))


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """A workload that takes milliseconds, and made-up yardsticks, which would take seconds."""
    monkeypatch.setitem(workloads._WORKLOADS, "tiny", TINY)
    monkeypatch.setattr(run.BenchSettings, "chosen_budget", 0.0)
    monkeypatch.setattr(run, "SHIELDED", TINY)
    monkeypatch.setattr(run, "measure_peak", lambda *_, **__: PEAK)
    monkeypatch.setattr(run, "measure_classifier", lambda *_, **__: SPEED)


def test_json_has_machine_and_rows(tmp_path: Path) -> None:
    result = invoke(*QUICK, *EAGER, "--json", "--out", str(tmp_path))
    assert result.exit_code == 0, result.output
    record = json.loads(result.stdout)
    assert record["machine"]["torch"]
    assert {(row["implementation"], row["step"]) for row in record["rows"]} == {
        (name, step) for name in ("vqshield-torch", "torch-eager") for step in ("kmeans", "defense")
    }
    for row in record["rows"]:
        assert row["workload"] == "tiny"
        assert row["images_per_second"] > 0
    assert (tmp_path / "bench.json").read_text() == result.stdout


def test_the_table_shows_figures_notes_and_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vqshield.bench.quality.WITHIN", -1.0)  # nothing is good enough
    result = invoke(*QUICK, *EAGER, "--implementation", "flash-kmeans")
    assert result.exit_code == 0, result.output
    for text in (
        "tiny kmeans, 10 iterations",
        "vqshield-torch *",
        "inertia differs",
        "tiny: vqshield-torch with default settings takes",
        "flash-kmeans (runs on",
    ):
        assert text in result.stdout
    assert "…" not in result.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--workload", "nope"], "workload='nope' is unknown; choose one of cifar-prd-2-25, cifar-swrd-3-25"),
        (["--implementation", "nope"], "implementation='nope' is unknown; choose one of faiss-cpu"),
        (["--threads", "two"], "threads='two' should be whole numbers between commas"),
        (["--threads", "0"], "threads=0 should be from 1 to"),
        (["--device", "tpu"], "device='tpu' is unknown; choose one of auto, cpu, cuda"),
    ],
)
def test_nonsense_is_refused_by_name(arguments: list[str], message: str) -> None:
    result = invoke("bench", "--quick", *arguments)
    assert result.exit_code == 2
    assert message in result.stderr


def test_an_interrupted_run_keeps_what_is_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = comparison.Comparison.row

    def interrupted(self: comparison.Comparison, case: comparison.Case) -> BenchRow:
        if case.step == "defense":
            raise KeyboardInterrupt
        return whole(self, case)

    monkeypatch.setattr(comparison.Comparison, "row", interrupted)
    result = invoke(*QUICK, *EAGER, "--out", str(tmp_path))
    assert result.exit_code == 130
    record = read_record(BenchRecord, tmp_path / "bench.json")
    assert record.complete is False
    assert {row.step for row in record.rows} == {"kmeans"}
