"""`vqshield evaluate`: a table with its caveats, records that survive a kill, nonsense refused at once."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from vqshield.cli.application import app
from vqshield.core.errors import InvalidInputError
from vqshield.evaluation.study import Evaluation
from vqshield.runs.records import RecordFolder

QUICK = ["--device", "cpu", "--limit", "4", "--batch", "2", "--samples", "2", "--defense", "prd:iterations=2"]
PGD = ["--attack", "pgd:steps=1,eot=2"]
IGNORANT = ["--attack", "pgd:steps=1,surrogate=none"]


def evaluate(*arguments: str):
    return CliRunner(env={"COLUMNS": "100"}).invoke(app, ["evaluate", *arguments])


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    out = tmp_path_factory.mktemp("evaluate") / "out"
    result = evaluate(*QUICK, *PGD, *IGNORANT, "--out", str(out))
    assert result.exit_code == 0, result.output
    return out, result.stdout


def test_table_summary_and_records(finished: tuple[Path, str]) -> None:
    out, text = finished
    summary = json.loads((out / "summary.json").read_text())
    assert summary["complete"] is True
    assert [(row["defense"], row["attack"]) for row in summary["rows"]] == [
        ("none", "none"),
        *[("prd:iterations=2", attack) for attack in ("none", PGD[1], IGNORANT[1], "adaptive")],
    ]
    assert len((out / "records.jsonl").read_text().splitlines()) == 4 * 4
    for shown in (
        "no defense",
        "defense prd:iterations=2",
        PGD[1],
        IGNORANT[1],
        "adaptive",
        "defense-unaware",
        " ± ",
    ):
        assert shown in text
    assert "…" not in text
    assert "Audit of the robust accuracies: not run" in text
    assert "WARNING" not in text


def test_a_finished_run_is_only_summed_up_again(finished: tuple[Path, str], monkeypatch) -> None:
    out, _ = finished
    before = (out / "records.jsonl").read_bytes()
    monkeypatch.setattr(Evaluation, "measure", None)
    again = evaluate(*QUICK, *PGD, *IGNORANT, "--out", str(out), "--json")
    assert again.exit_code == 0, again.output
    assert json.loads(again.stdout) == json.loads((out / "summary.json").read_text())
    assert again.stderr == ""
    assert (out / "records.jsonl").read_bytes() == before
    assert evaluate("--render-only", "--out", str(out), "--json").stdout == again.stdout


def test_another_specification_is_refused_with_both_values(finished: tuple[Path, str]) -> None:
    out, _ = finished
    before = (out / "records.jsonl").read_bytes()
    result = evaluate(*QUICK, *PGD, *IGNORANT, "--out", str(out), "--eps", "4/255")
    assert result.exit_code == 2
    assert f"{out} holds records made with eps=8/255, this run has eps=4/255" in result.stderr
    assert "choose another folder" in result.stderr
    assert (out / "records.jsonl").read_bytes() == before


@pytest.mark.parametrize(
    ("attack", "warning"),
    [
        (IGNORANT, "WARNING: these attacks ignore the defense: the result flatters it"),
        ([], "WARNING: no attack was given"),
    ],
)
def test_the_table_warns_of_attacks_that_prove_little(
    tmp_path: Path, attack: list[str], warning: str
) -> None:
    result = evaluate(*QUICK, *attack, "--out", str(tmp_path / "out"))
    assert warning in result.stdout
    assert ("Audit" in result.stdout) is bool(attack)


@pytest.mark.parametrize(
    ("given", "shown", "eps"),
    [
        (["--norm", "l2"], "attacks: l2, eps 0.5;", 0.5),
        (["--norm", "l1"], "attacks: l1, eps 12;", 12.0),
        ([], "attacks: linf, eps 8/255;", 8 / 255),
        (["--norm", "l2", "--eps", "8/255"], "l2, eps 0.0313725 is outside the usual budgets of l2", 8 / 255),
    ],
)
def test_the_budget_is_the_norms_and_the_table_names_both(
    tmp_path: Path, given: list[str], shown: str, eps: float
) -> None:
    result = evaluate(*QUICK, *IGNORANT, *given, "--out", str(tmp_path))
    text = " ".join(result.stdout.split())
    assert shown in text
    assert ("WARNING" in text and "outside the usual" in text) is (eps < 0.1 and "l2" in given)
    assert json.loads((tmp_path / "manifest.json").read_text())["eps"] == eps


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--data", "cifar11"], ["data='cifar11'", "cifar10-sample", "mnist"]),
        (["--data", "cifar10"], ["cifar10", "folder"]),
        (["--classifier", "resnet"], ["classifier=", "resnet' is not a file", "small-cifar10"]),
        (["--defense", "shield9"], ["defense='shield9'", "none", "swrd"]),
        (["--defense", "swrd:colour=3"], ["'colour'", "size"]),
        (["--defense", "prd:size=64"], ["size=64"]),
        (["--attack", "hope"], ["attack='hope'", "pgd", "adaptive-v1"]),
        (["--attack", "pgd:luck=1"], ["'luck'", "steps", "surrogate"]),
        (["--attack", "pgd:surrogate=magic"], ["surrogate='magic'", "none", "ste"]),
        (["--attack", "pgd", "--attack", "pgd"], ["'pgd' is given twice"]),
        ([*PGD, "--norm", "l7"], ["norm='l7'", "linf"]),
        ([*PGD, "--eps", "-1/255"], ["eps=-0.0039"]),
        ([*PGD, "--eps", "much"], ["eps='much'", "number"]),
        ([*PGD, "--eps", "1,runs=3"], ["should be one number"]),
        (["--limit", "0"], ["limit=0 should be >= 1"]),
        (["--samples", "0"], ["samples=0 should be >= 1"]),
        ([*PGD, "--selection", "0"], ["selection=0 should be >= 1"]),
        (["--batch", "0"], ["batch=0 should be >= 1"]),
        (["--seed", "-1"], ["seed=-1"]),
        (["--device", "abacus"], ["device='abacus'", "cpu, cuda or auto"]),
        (["--render-only"], ["no run was started there"]),
    ],
)
def test_nonsense_is_refused_before_any_work(tmp_path: Path, arguments: list[str], named: list[str]) -> None:
    result = evaluate("--out", str(tmp_path / "out"), *arguments)
    assert result.exit_code == 2
    assert all(word in result.stderr for word in named), result.stderr
    assert "Traceback" not in result.stderr
    assert not (tmp_path / "out").exists()


@pytest.fixture
def unheard() -> Iterator[list[int]]:
    """The SIGTERMs that no command heard."""
    found: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: found.append(number))
    yield found
    signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize(
    ("number", "code", "how"), [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")]
)
def test_a_signal_keeps_what_is_finished_and_says_how_to_continue(
    tmp_path: Path, monkeypatch, unheard: list[int], number: int, code: int, how: str
) -> None:
    whole = Evaluation.measure

    def interrupted(self, cell, *told):
        if cell.images.start == 2 and cell.attack != "none":
            os.kill(os.getpid(), number)
        return whole(self, cell, *told)

    with monkeypatch.context() as patch:
        patch.setattr(Evaluation, "measure", interrupted)
        stopped = evaluate(*QUICK, *PGD, "--out", str(tmp_path))
    assert (stopped.exit_code, unheard) == (code, [])
    assert f"{how}: what is finished is in {tmp_path}; run the same command again" in stopped.stderr
    partial = json.loads((tmp_path / "summary.json").read_text())
    assert partial["complete"] is False
    assert [row["n"] for row in partial["rows"]] == [4, 4, 2, 2]
    shown = evaluate("--render-only", "--out", str(tmp_path)).stdout
    assert "not finished" in shown
    assert evaluate(*QUICK, *PGD, "--out", str(tmp_path)).exit_code == 0
    assert json.loads((tmp_path / "summary.json").read_text())["complete"] is True
    os.kill(os.getpid(), signal.SIGTERM)
    assert unheard == [signal.SIGTERM], "the handler is what it was"


def test_stopped_before_anything_is_written_it_says_so(tmp_path: Path, monkeypatch) -> None:
    def interrupted(self: Evaluation) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Evaluation, "manifest", property(interrupted))
    stopped = evaluate(*QUICK, "--out", str(tmp_path))
    assert stopped.exit_code == 130
    assert stopped.stderr.splitlines()[-1] == (
        "interrupted: nothing is finished; run the same command again to start"
    )


KILLED = """
import sys
from vqshield.cli import main
from vqshield.evaluation.study import Evaluation

unbroken, killed, *arguments = sys.argv[1:]
whole, measured = Evaluation.measure, 0

def measure(self, cell, *told):
    global measured
    measured += 1
    if measured == 8:
        print("in the middle", flush=True)
        sys.stdin.read()  # until it is killed
    return whole(self, cell, *told)

def evaluate(out):
    sys.argv = ["vqshield", "evaluate", *arguments, "--out", out, "--json"]
    try:
        main()
    except SystemExit as end:
        assert not end.code

evaluate(unbroken)
Evaluation.measure = measure
evaluate(killed)
"""
"""One evaluation to its end, then the same one up to its eighth cell."""


@pytest.mark.slow
def test_killed_in_the_middle_it_ends_in_the_same_bytes(tmp_path: Path) -> None:
    arguments = [
        "--device",
        "cpu",
        "--limit",
        "6",
        "--batch",
        "1",
        "--samples",
        "2",
        "--defense",
        "prd",
        *PGD,
    ]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    unbroken, killed = tmp_path / "unbroken", tmp_path / "killed"
    command = [sys.executable, "-c", KILLED, str(unbroken), str(killed), *arguments]
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert any(line == "in the middle\n" for line in process.stdout), "it ended before its eighth cell"
        with (
            pytest.raises(InvalidInputError, match="another process is writing into"),
            RecordFolder(killed, [], Evaluation.parse).writing(Evaluation.read(killed).manifest),
        ):
            pass
        process.kill()
        assert process.wait(timeout=60) == -signal.SIGKILL
    records = killed / "records.jsonl"
    written = records.read_bytes()
    assert written.count(b"\n") == 7
    records.write_bytes(written[:-20])  # and half a line, as if the machine had gone down
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as in the process that was killed
    try:
        assert evaluate(*arguments, "--out", str(killed), "--json").exit_code == 0
    finally:
        torch.set_num_threads(threads)
    assert records.read_bytes() == (unbroken / "records.jsonl").read_bytes()
    summaries = [json.loads((out / "summary.json").read_text()) for out in (killed, unbroken)]
    for summary in summaries:
        assert summary["complete"] is True
        for part in (summary, *summary["rows"]):
            del part["seconds"]
    assert summaries[0] == summaries[1]


def test_a_precision_is_named_in_the_table_the_manifest_and_the_records(tmp_path: Path) -> None:
    result = evaluate(*QUICK, *PGD, "--precision", "bf16", "--out", str(tmp_path))
    assert result.exit_code == 0, result.output
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert manifest["attacks"][0]["name"] == f"{PGD[1]},precision=bf16"
    assert manifest["attacks"][0]["threats"][0]["precision"] == "bf16"
    assert "precision=bf16" in (tmp_path / "records.jsonl").read_text()
    assert "precision=bf16" in result.stdout
    usual = evaluate(*QUICK, *PGD, "--precision", "float32", "--out", str(tmp_path / "usual"))
    assert usual.exit_code == 0, usual.output
    assert "precision" not in (tmp_path / "usual" / "manifest.json").read_text()
    wrong = evaluate(*QUICK, *PGD, "--precision", "fp8", "--out", str(tmp_path / "wrong"))
    assert wrong.exit_code == 2
    assert "precision='fp8' is unknown; choose one of bf16, float32, tf32" in wrong.output
    assert not (tmp_path / "wrong").exists()
