"""`vqshield reproduce`: reports of finished and stopped runs, failures in one line."""

import errno
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from vqshield.classifiers import Normalised, build, save_classifier
from vqshield.cli.application import app
from vqshield.data import sample
from vqshield.evaluation.study import Evaluation

FILE = """
id = "T2"
title = "Small"
shows = "table"

[[parts]]
kind = "accuracy"
name = "few"
title = "Few images"
data = "cifar10"
eps = "8/255"
count = 4
runs = 2
defenses = ["prd:size=2,codes=25", "swrd:size=3,codes=25"]
attacks = { pgd = "pgd:steps=2,surrogate=none" }
"""
RECORDS = Path("T2", "few", "protocol", "records.jsonl")
REPORTS = ("report.html", "report.md", "report.tex")


@pytest.fixture(autouse=True)
def no_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a machine has, these tests use what is bundled."""
    monkeypatch.setenv("VQSHIELD_CACHE", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("file") / "small.toml"
    path.write_text(FILE)
    return str(path)


def run(*arguments: object):
    return CliRunner(env={"COLUMNS": "100"}).invoke(app, [str(each) for each in arguments])


def reproduce(*arguments: object):
    return run("reproduce", *arguments, "--device", "cpu")


def rendered(out: Path, *arguments: object, what: str = "all"):
    return run("reproduce", what, "--render-only", "--out", out, *arguments)


def failed(result, *named: object, code: int = 2) -> None:
    """Ended in one line that names these."""
    assert result.exit_code == code, result.output
    last = result.stderr.strip().splitlines()[-1]
    assert last.startswith("error: ")
    assert all(str(word) in result.stderr for word in named), result.stderr
    assert "Traceback" not in result.output


@pytest.fixture(scope="module")
def finished(file: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    out = tmp_path_factory.mktemp("finished")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VQSHIELD_CACHE", str(out / "no cache"))
        result = reproduce(file, "--out", out)
    assert result.exit_code == 0, result.output
    return out, result.stdout


@pytest.fixture
def partial(file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, str]:
    """A run that was stopped by Ctrl-C before the attack on the second defense."""
    whole, out = Evaluation.measure, tmp_path / "partial"

    def interrupted(self, cell, *told):
        if cell.defense.startswith("swrd") and cell.attack != "none":
            raise KeyboardInterrupt
        return whole(self, cell, *told)

    with monkeypatch.context() as patch:
        patch.setattr(Evaluation, "measure", interrupted)
        stopped = reproduce(file, "--out", out)
    assert stopped.exit_code == 130
    return out, stopped.stderr


def test_the_worked_example_from_end_to_end(tmp_path: Path) -> None:
    result = run("reproduce", "E1", "--out", tmp_path)
    assert result.exit_code == 0, result.output
    folder = tmp_path / "E1"
    assert all((folder / name).is_file() for name in REPORTS)
    rows = json.loads((folder / "summary.json").read_text())["parts"][0]["rows"]
    assert [round(row["values"]["proposition1"]["ours"], 3) for row in rows] == [0.494, 0.584]
    assert [row["values"]["proposition1"]["paper"] for row in rows] == [0.40, 0.45]
    assert "Clopper" in result.stdout
    assert str(folder / "report.html") in result.stdout.replace("\n", "")


def test_a_file_of_ones_own_from_end_to_end(finished: tuple[Path, str]) -> None:
    out, text = finished
    assert all((out / "T2" / name).is_file() for name in REPORTS)
    assert {path.suffix for path in (out / "T2").glob("plot-*")} <= {".png", ".svg"}
    for shown in ("pRD (s=2, k=25)", "swRD (s=3, k=25)", "WANG", "as published", "paper 63.93", "replaces"):
        assert shown in text
    page = (out / "T2" / "report.html").read_text()
    assert "63.93" in page
    assert "replaces" in page
    assert json.loads((out / "T2" / "summary.json").read_text())["complete"] is True


def test_a_finished_run_is_only_shown_again(file: str, finished: tuple[Path, str], monkeypatch) -> None:
    out, _ = finished
    before = (out / RECORDS).read_bytes()
    monkeypatch.setattr(Evaluation, "measure", None)
    again = reproduce(file, "--out", out, "--json")
    assert again.exit_code == 0, again.output
    assert json.loads(again.stdout) == [json.loads((out / "T2" / "summary.json").read_text())]
    assert (out / RECORDS).read_bytes() == before
    assert rendered(out, "--json").stdout == again.stdout == rendered(out, "--json", what=file).stdout


def test_report_renders_the_reports_again(finished: tuple[Path, str]) -> None:
    out, text = finished
    before = {name: (out / "T2" / name).read_bytes() for name in REPORTS}
    for name in REPORTS:
        (out / "T2" / name).unlink()
    result = rendered(out)
    assert result.exit_code == 0, result.output
    assert {name: (out / "T2" / name).read_bytes() for name in REPORTS} == before
    assert result.stdout == text


def test_a_dry_run_writes_nothing(file: str, tmp_path: Path) -> None:
    result = reproduce(file, "--out", tmp_path / "out", "--dry-run")
    assert result.exit_code == 0, result.output
    assert "T2/few/protocol" in result.stdout
    assert not (tmp_path / "out").exists()


def test_a_dry_run_counts_what_is_done(file: str, partial: tuple[Path, str]) -> None:
    out, _ = partial
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*")}
    row = next(
        line for line in reproduce(file, "--out", out, "--dry-run").stdout.splitlines() if "T2/few" in line
    )
    total, done = (int(each) for each in row.replace("│", " ").split()[2:4])
    assert done == (out / RECORDS).read_bytes().count(b"\n")
    assert total == done + 4
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*")} == before


def test_ctrl_c_leaves_a_report_and_says_how_to_continue(
    file: str, partial: tuple[Path, str], finished: tuple[Path, str]
) -> None:
    out, said = partial
    assert f"what is finished is in {out / 'T2'}; run the same command again" in said
    assert all((out / "T2" / name).is_file() for name in REPORTS)
    shown = rendered(out)
    assert shown.exit_code == 0, shown.output
    assert "not finished" in shown.stdout
    assert "not finished" in (out / "T2" / "report.html").read_text()
    assert reproduce(file, "--out", out).exit_code == 0
    assert (out / RECORDS).read_bytes() == (finished[0] / RECORDS).read_bytes()


def test_some_data_sets_alone(file: str, tmp_path: Path) -> None:
    both = tmp_path / "both.toml"
    second = FILE[FILE.index("[[parts]]") :].replace('"few"', '"other"').replace('"cifar10"', '"mnist"')
    both.write_text(FILE + second)
    result = reproduce(both, "--out", tmp_path / "out", "--only", "cifar10", "--limit", 1, "--json")
    assert result.exit_code == 0, result.output
    (summary,) = json.loads(result.stdout)
    assert [part["name"] for part in summary["parts"]] == ["few"]
    assert rendered(tmp_path / "out").exit_code == 0


def test_all_leaves_out_what_cannot_be_run(tmp_path: Path) -> None:
    result = reproduce("all", "--only", "mnist", "--out", tmp_path / "out", "--dry-run")
    assert result.exit_code == 0, result.output
    left_out = [line.split()[0] for line in result.stderr.splitlines() if "is left out: nothing of" in line]
    assert left_out == ["T1", "F7", "F8", "F10"]
    assert "--data-dir mnist=FOLDER" in result.stderr
    assert not (tmp_path / "out").exists()


def test_all_goes_on_after_a_failure_and_ends_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vqshield_paper.commands.reproduce.list_experiments", lambda: ["F1", "E1"])
    assert reproduce("F1", "--limit", 1, "--out", tmp_path, "--seed", 1).exit_code == 0
    result = reproduce("all", "--limit", 1, "--out", tmp_path)
    assert result.exit_code == 2
    assert "1 of 2 were not carried out:\nF1: " in result.stderr
    assert "seed=1, this run has seed=0" in result.stderr
    assert (tmp_path / "E1" / "report.html").is_file()


def test_a_dry_run_refuses_what_a_run_would(file: str, tmp_path: Path) -> None:
    assert reproduce(file, "--limit", 1, "--samples", 1, "--out", tmp_path).exit_code == 0
    failed(reproduce(file, "--limit", 1, "--samples", 2, "--out", tmp_path, "--dry-run"), "runs=1", "runs=2")


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["E1", "--address", "head:6379"], ["--address given for --executor local", "choose --executor ray"]),
        (["E1", "--task-gpus", "1", "--retries", "2"], ["--task-gpus, --retries given for", "ray"]),
        (["E1", "--retries", "2"], ["--retries given", "it has none; choose --executor processes or ray"]),
        (
            ["E1", "--executor", "processes", "--address", "head:6379"],
            [
                "--address given for",
                "which has no such option; it has --workers, --task-cpus, --retries; choose",
            ],
        ),
        (
            ["E1", "--executor", "ray", "--workers", "2"],
            ["--workers given", "choose --executor processes for"],
        ),
        (
            ["E1", "--executor", "ray", "--workers", "2", "--address", "x"],
            ["--workers given", "it has --address, --task-cpus, --task-gpus, --retries"],
        ),
        (["E1", "--executor", "processes", "--workers", "0"], ["workers=0 should be >= 1"]),
        (["T9"], ["'T9' is not known", "T1", "E1", ".toml"]),
        (["none.toml"], ["none.toml is not a file"]),
        (["T1"], ["nothing of T1 can be run", "--data-dir mnist=FOLDER", "--classifier mnist=FILE"]),
        (["T2", "--limit", "0"], ["limit=0 should be >= 1"]),
        (["T2", "--samples", "0"], ["samples=0 should be >= 1"]),
        (["T2", "--seed", "-1"], ["seed=-1"]),
        (["T2", "--attack", "magic"], ["adaptive='magic'", "adaptive-v1", "none"]),
        (["T2", "--only", "cifar11"], ["--only='cifar11'", "cifar10"]),
        (["T2", "--only", "mnist"], ["--only mnist selects no part of T2", "cifar10"]),
        (["T2", "--data-dir", "nowhere"], ["--data-dir nowhere is not a folder"]),
        (["T2", "--data", "magic"], ["--data='magic'", "nips17"]),
        (["F4", "--classifier", "x"], ["which data set", "--classifier NAME=x", "cifar100"]),
        (["T2", "--classifier", "no.safetensors"], ["no.safetensors", "is not a file"]),
        (["T2", "--executor", "magic"], ["'magic'", "local", "processes", "ray"]),
    ],
)
def test_nonsense_is_refused_before_any_work(tmp_path: Path, arguments: list[str], named: list[str]) -> None:
    failed(reproduce(*arguments, "--out", tmp_path / "out"), *named)
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_several_processes_give_the_same_records(
    file: str, finished: tuple[Path, str], tmp_path: Path
) -> None:
    threads = torch.get_num_threads()
    options = ("--executor", "processes", "--workers", 2, "--task-cpus", threads)
    result = reproduce(file, "--out", tmp_path, *options)
    assert result.exit_code == 0, result.output
    for path in (RECORDS, RECORDS.with_name("manifest.json")):
        assert (tmp_path / path).read_bytes() == (finished[0] / path).read_bytes()


def test_a_report_of_nothing_is_refused(tmp_path: Path) -> None:
    failed(rendered(tmp_path), "no experiment.json", tmp_path)
    failed(rendered(tmp_path / "nowhere", what="T2"), "no experiment.json", "nowhere")


def test_a_truncated_data_file(file: str, tmp_path: Path) -> None:
    some = sample(4)
    pairs = zip(some.labels.tolist(), some.images.numpy(), strict=True)
    whole = b"".join(bytes([label]) + image.tobytes() for label, image in pairs)
    path = tmp_path / "test_batch.bin"
    path.write_bytes(whole[:-100])
    failed(
        reproduce(file, "--data-dir", tmp_path, "--out", tmp_path / "out"),
        path,
        f"{len(whole) - 100} bytes",
        "3073",
    )
    assert not (tmp_path / "out").exists()
    path.write_bytes(whole)
    assert reproduce(file, "--data-dir", tmp_path, "--out", tmp_path / "out", "--limit", 1).exit_code == 0


def test_a_classifier_of_another_number_of_classes(file: str, tmp_path: Path) -> None:
    weights = tmp_path / "hundred.safetensors"
    network = build("small", classes=100, widths=(4,), blocks=(1,))
    save_classifier(weights, Normalised(network, mean=[0.5] * 3, std=[0.25] * 3))
    result = reproduce(file, "--classifier", f"cifar10={weights}", "--out", tmp_path / "out")
    failed(result, "hundred.safetensors", "100 classes", "has 10")
    assert not (tmp_path / "out").exists()


def test_another_limit_in_the_same_folder_names_both(file: str, finished: tuple[Path, str]) -> None:
    out, _ = finished
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    result = reproduce(file, "--out", out, "--limit", 2)
    failed(result, "data.images=4", "data.images=2", "choose another folder")
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before


def test_two_runs_into_one_folder(file: str, partial: tuple[Path, str]) -> None:
    fcntl = pytest.importorskip("fcntl")  # Windows has none, and no such lock
    out, _ = partial
    before = (out / RECORDS).read_bytes()
    with (out / RECORDS).with_name(".lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        failed(reproduce(file, "--out", out), "another process is writing into", (out / RECORDS).parent)
    assert (out / RECORDS).read_bytes() == before
    assert reproduce(file, "--out", out).exit_code == 0


@contextmanager
def small_files() -> Iterator[str]:
    """The system refuses files over 20 kB: four attacked images have 49."""
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, before[1]))
    try:
        yield os.strerror(errno.EFBIG)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@contextmanager
def full_disk() -> Iterator[str]:
    """From the fifth sync on the disk is full."""
    waits = 0

    def fsync(file: int, whole: Callable[[int], None] = os.fsync) -> None:
        nonlocal waits
        waits += 1
        if waits >= 5:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        whole(file)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", fsync)
        yield os.strerror(errno.ENOSPC)


@pytest.mark.parametrize("trouble", [small_files, full_disk])
def test_no_room_on_the_disk(file: str, finished: tuple[Path, str], tmp_path: Path, trouble) -> None:
    with trouble() as words:
        result = reproduce(file, "--out", tmp_path)
    failed(result, words, code=1)
    expected, some = (finished[0] / RECORDS).read_bytes(), (tmp_path / RECORDS).read_bytes()
    assert some
    assert expected.startswith(some)
    assert some != expected
    assert reproduce(file, "--out", tmp_path).exit_code == 0
    assert (tmp_path / RECORDS).read_bytes() == expected


def test_a_folder_that_may_not_be_written_to(file: str, tmp_path: Path) -> None:
    (tmp_path / "out").write_text("a file")
    failed(reproduce(file, "--out", tmp_path / "out"), tmp_path / "out", code=1)
