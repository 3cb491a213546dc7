"""`vqshield audit`: two files and a table, a flattering figure called out, nonsense refused at once."""

import dataclasses
import json
import shutil
from html import unescape
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from vqshield.auditing import (
    FAIL,
    NOT_RUN,
    PASS,
    QUICK,
    SUSPICIOUS,
    TITLES,
    UNDECIDED,
    Audit,
    AuditSettings,
    Flag,
    Uncertain,
)
from vqshield.auditing.results import Outcome
from vqshield.cli.application import app
from vqshield.cli.bars import LogLines

TINY = dataclasses.replace(
    QUICK,
    runs=2,
    batch=4,
    queries=4,
    directions=2,
    draws=4,
    probe="pgd:steps=2,eot=2,surrogate=soft",
    rehearsal=True,
)
FEW = ["--quick", "--device", "cpu", "--limit", "4", "--defense", "prd:iterations=2"]
IGNORANT = ["--attack", "pgd:steps=1,surrogate=none"]
command = import_module("vqshield.auditing.study")


def run(*arguments: str):
    return CliRunner(env={"COLUMNS": "120"}).invoke(app, ["audit", *arguments])


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """The quick settings take minutes on a CPU."""
    monkeypatch.setattr(command, "QUICK", TINY)


@pytest.fixture(scope="module")
def ignorant(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an audit of an ignorant attack: to be copied, not to be changed."""
    out = tmp_path_factory.mktemp("ignorant")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(command, "QUICK", TINY)
        assert run(*FEW, *IGNORANT, "--out", str(out)).exit_code == 3
    return out


def test_images_that_nobody_has_seen_are_read_and_asked_about(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    pictures = generator.integers(0, 256, (6, 3, 32, 32), dtype=np.uint8)
    np.savez(tmp_path / "test.npz", images=pictures, labels=np.arange(6))
    result = run(*FEW, *IGNORANT, "--held-out", f"npz={tmp_path}", "--out", str(tmp_path / "out"))
    assert result.exit_code == 3, result.output
    found = json.loads((tmp_path / "out" / "audit.json").read_text())
    (lookup,) = [flag for flag in found["flags"] if flag["name"] == "R11"]
    assert "held out" in json.dumps(lookup)


def test_held_out_images_name_their_reader() -> None:
    result = run(*FEW, "--held-out", "somewhere")
    assert result.exit_code == 2
    assert "'somewhere' should be READER=DIR, such as npz=DIR" in result.output


def test_it_writes_both_files_and_prints_the_table(tmp_path: Path) -> None:
    out = tmp_path / "new" / "folder"
    result = run(*FEW, *IGNORANT, "--out", str(out), "--seed", "3")
    assert result.exit_code == 3, result.output
    assert sorted(path.name for path in out.iterdir()) == [
        ".lock", "audit.html", "audit.json", "manifest.json", "notes.jsonl", "records.jsonl", "times.jsonl",
    ]  # fmt: skip
    found = json.loads((out / "audit.json").read_text())
    assert [flag["name"] for flag in found["flags"]] == list(TITLES)
    assert found["passed"] is False
    assert {flag["name"]: flag["outcome"] for flag in found["flags"]}["R4"] == "fail"
    assert (found["defense"], found["given"], found["n"]) == ("prd:iterations=2", [IGNORANT[1]], 4)
    assert (found["data"], found["classifier"]) == ("cifar10-sample", "small-cifar10")
    assert (found["norm"], found["eps"]) == ("linf", 8 / 255)
    assert found["settings"] == dataclasses.asdict(dataclasses.replace(TINY, seed=3))
    assert found["machine"]["torch"]
    assert found["seconds"] > 0
    for name in TITLES:
        assert f"\n{name} " in result.stdout
    assert "prd:iterations=2" in result.stdout
    assert "budget: linf, eps 8/255" in result.stdout
    assert "Doubtful" in result.stdout
    assert "not run" in result.stdout
    assert str(out / "audit.html") in result.stdout.replace("\n", "")


def test_an_audit_that_was_stopped_goes_on_and_says_the_same(tmp_path: Path) -> None:
    attack = ["--attack", "pgd:steps=4,eot=2"]
    whole = json.loads(run(*FEW, *attack, "--out", str(tmp_path / "whole"), "--json").stdout)
    lines = (tmp_path / "whole" / "notes.jsonl").read_bytes().splitlines(keepends=True)
    stopped = tmp_path / "stopped"
    stopped.mkdir()
    shutil.copy(tmp_path / "whole" / "manifest.json", stopped)
    half = len(lines) // 2
    (stopped / "notes.jsonl").write_bytes(b"".join(lines[:half]) + lines[half][:20])
    resumed = json.loads(run(*FEW, *attack, "--out", str(stopped), "--json").stdout)
    assert resumed["flags"] == whole["flags"]
    assert len((stopped / "notes.jsonl").read_bytes().splitlines()) == len(lines)
    assert (stopped / "audit.html").read_bytes() == (tmp_path / "whole" / "audit.html").read_bytes()


def test_a_second_run_that_measures_nothing_keeps_the_time_of_the_first(
    ignorant: Path, tmp_path: Path
) -> None:
    shutil.copytree(ignorant, tmp_path, dirs_exist_ok=True)
    before = {each.name: each.read_bytes() for each in tmp_path.iterdir()}
    run(*FEW, *IGNORANT, "--out", str(tmp_path))
    assert {each.name: each.read_bytes() for each in tmp_path.iterdir()} == before


@pytest.mark.parametrize(
    ("outcomes", "code", "strict"),
    [
        ([PASS] * 14, 0, 0),
        ([PASS] * 13 + [FAIL], 3, 3),
        ([PASS] * 12 + [FAIL, NOT_RUN], 3, 3),
        ([PASS] * 13 + [SUSPICIOUS], 3, 3),
        ([PASS] * 13 + [NOT_RUN], 4, 3),
        ([UNDECIDED] * 14, 4, 3),
        ([PASS] * 13 + [UNDECIDED], 4, 3),
    ],
)
def test_every_verdict_has_an_exit_code_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, outcomes: list[Outcome], code: int, strict: int
) -> None:
    found = Audit(
        passed=set(outcomes) == {PASS},
        n=4,
        natural=Uncertain(0.9, 0.1),
        reported=Uncertain(0.1, 0.1),
        attacks={},
        flags=tuple(
            Flag(name, title, outcome, "so")
            for (name, title), outcome in zip(TITLES.items(), outcomes, strict=True)
        ),
    )
    monkeypatch.setattr("vqshield.auditing.auditor.audit", lambda *_given, **_options: found)
    assert run(*FEW, "--out", str(tmp_path)).exit_code == code
    assert run(*FEW, "--out", str(tmp_path), "--strict").exit_code == strict
    assert run(*FEW, "--out", str(tmp_path), "--json").exit_code == code


def test_too_few_images_are_refused_before_any_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "QUICK", QUICK)
    refused = run("--quick", "--device", "cpu", "--limit", "49", "--out", str(tmp_path / "out"))
    assert refused.exit_code == 2
    assert "49 images cannot pass an audit" in refused.stderr
    assert not (tmp_path / "out").exists()


def test_the_bar_counts_every_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    monkeypatch.setattr(LogLines, "report", lambda _, doing, done, total: seen.append((done, total)))
    run(*FEW, *IGNORANT, "--out", str(tmp_path))
    assert seen == [(done, len(TITLES)) for done in range(len(TITLES) + 1)]


def test_another_audit_in_the_same_folder_is_refused(ignorant: Path, tmp_path: Path) -> None:
    shutil.copytree(ignorant, tmp_path, dirs_exist_ok=True)
    before = (tmp_path / "records.jsonl").read_bytes()
    other = run(*FEW, *IGNORANT, "--out", str(tmp_path), "--seed", "5")
    assert other.exit_code == 2
    assert "holds records made with settings.seed=0" in other.output.replace("\n", " ")
    assert (tmp_path / "records.jsonl").read_bytes() == before


def test_the_page_needs_nothing_from_outside(ignorant: Path) -> None:
    page = (ignorant / "audit.html").read_text()
    assert page.startswith("<!doctype html>")
    assert "<script" not in page
    assert "http://" not in page
    assert "https://" not in page
    assert all(title in unescape(page) for title in TITLES.values())


def test_json_is_the_record_and_nothing_else(tmp_path: Path) -> None:
    knowing = ["--attack", "pgd:steps=4,eot=2,surrogate=soft", "--attack", "square:queries=4"]
    result = run(*FEW, *knowing, "--norm", "l2", "--eps", "1/2", "--out", str(tmp_path), "--json")
    assert result.exit_code in (3, 4), result.output
    found = json.loads(result.stdout)
    assert found == json.loads((tmp_path / "audit.json").read_text())
    assert list(found["attacks"]) == found["given"] == [knowing[1], knowing[3]]
    assert (found["norm"], found["eps"]) == ("l2", 0.5)
    ran = [flag["name"] for flag in found["flags"] if flag["outcome"] != "not run"]
    assert {"R1", "R2", "R3", "R4", "R5", "R6", "R7", "R8", "R11", "R12", "R13", "R14"} <= set(ran)
    assert found["flags"][1]["figures"].keys() == {"steps 1", "steps 2", "steps 4"}
    assert result.stderr == ""


def test_a_seed_repeats_the_figures(tmp_path: Path) -> None:
    found = []
    for folder in ("one", "two"):
        result = run(*FEW, *IGNORANT, "--out", str(tmp_path / folder), "--json")
        found.append(json.loads(result.stdout))
        del found[-1]["seconds"]
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("flag", "attack", "settings"),
    [(["--quick"], "adaptive-v1-quick", TINY), ([], "adaptive-v1", AuditSettings())],
)
def test_without_an_attack_a_suite_is_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flag: list[str], attack: str, settings: AuditSettings
) -> None:
    asked = {}

    def record_what_is_asked(*_given, **options):
        asked.update(options)
        raise KeyboardInterrupt

    monkeypatch.setattr("vqshield.auditing.auditor.audit", record_what_is_asked)
    few = [each if each != "4" else "50" for each in FEW if each != "--quick"]
    stopped = run(*few, *flag, "--out", str(tmp_path / "out"))
    assert stopped.exit_code == 130
    assert "run the same command again to continue" in stopped.output.replace("\n", " ")
    assert asked["attacks"] == (attack,)
    assert asked["settings"] == settings
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        ".lock", "manifest.json", "records.jsonl", "times.jsonl",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--data", "cifar11"], ["data='cifar11'", "cifar10-sample"]),
        (["--classifier", "resnet"], ["resnet' is not a file", "small-cifar10"]),
        (["--defense", "shield9"], ["defense='shield9'", "swrd"]),
        (["--defense", "nowhere:shield"], ["no module 'nowhere' can be imported"]),
        (["--defense", "swrd:colour=3"], ["'colour'", "size"]),
        (["--attack", "hope"], ["attack='hope'", "adaptive-v1", "pgd"]),
        (["--attack", "pgd:luck=1"], ["'luck'", "steps", "surrogate"]),
        (["--attack", "pgd:surrogate=magic"], ["surrogate='magic'", "soft"]),
        (["--attack", "adaptive-v1:steps=3"], ["a suite such as adaptive-v1 takes none"]),
        (["--norm", "l7"], ["norm='l7'", "l2, linf"]),
        (["--eps", "-1/255"], ["eps=-0.0039"]),
        (["--eps", "much"], ["eps='much'"]),
        (["--limit", "0"], ["limit=0 should be >= 1"]),
        (["--seed", "-1"], ["seed=-1"]),
        (["--device", "abacus"], ["device='abacus'"]),
    ],
)
def test_nonsense_is_refused_before_any_work(tmp_path: Path, arguments: list[str], named: list[str]) -> None:
    result = run("--quick", "--limit", "2", "--out", str(tmp_path / "out"), *arguments)
    assert result.exit_code == 2
    assert all(word in result.stderr for word in named), result.stderr
    assert "Traceback" not in result.output
    assert not (tmp_path / "out").exists()
