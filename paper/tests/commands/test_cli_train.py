import json

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from vqshield.cli.application import app
from vqshield.core.errors import InvalidInputError
from vqshield_paper.commands.train import train

RUNNER = CliRunner()
APP = typer.Typer()
APP.command()(train)


@pytest.fixture
def folder(tmp_path):
    """Eight random CIFAR-10 records a batch."""
    source = np.random.default_rng(0)
    place = tmp_path / "data"
    place.mkdir()
    for name in [*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"]:
        records = source.integers(0, 256, (8, 3073), dtype=np.uint8)
        records[:, 0] %= 10
        records.tofile(place / name)
    return place


def command(folder, *more):
    out = folder.parent / "out"
    return RUNNER.invoke(
        APP, ["--data-dir", str(folder), "--out", str(out), "--epochs", "2", "--batch", "20", *more]
    )


def test_text_names_the_files_and_json_is_the_card(folder, caplog):
    with caplog.at_level("INFO", logger="vqshield"):
        text = command(folder)
    assert text.exit_code == 0
    assert "of 8 test images right after 2 epochs" in text.stdout
    assert "small-cifar10.safetensors" in text.stdout
    assert "loss" in caplog.text  # without a terminal, progress is a log
    again = command(folder, "--json")  # resumes the finished run
    assert json.loads(again.stdout) == json.loads((folder.parent / "out" / "small-cifar10.json").read_text())
    assert again.stderr == ""


def test_a_changed_setting_needs_no_resume(folder):
    assert command(folder).exit_code == 0
    changed = command(folder, "--seed", "3")
    assert isinstance(changed.exception, InvalidInputError)
    assert "seed=0" in str(changed.exception)
    assert command(folder, "--seed", "3", "--fresh").exit_code == 0


@pytest.mark.parametrize(("stop_in", "advice"), [(1, "nothing to resume"), (2, "same command to continue")])
def test_interrupted_says_how_to_go_on(folder, monkeypatch, stop_in, advice):
    def report(self, doing, done, total):
        if doing.startswith(f"epoch {stop_in}/"):
            raise KeyboardInterrupt

    out = folder.parent / "out"
    arguments = ["train", "--data-dir", str(folder), "--out", str(out), "--epochs", "2", "--batch", "20"]
    with monkeypatch.context() as patch:
        patch.setattr("vqshield.cli.bars.LogLines.report", report)
        stopped = RUNNER.invoke(app, arguments)
    assert stopped.exit_code == 130
    assert stopped.stderr.splitlines()[-1].startswith("interrupted: ")
    assert advice in stopped.stderr
    assert command(folder).exit_code == 0


@pytest.mark.parametrize(
    ("option", "value"),
    [("--data", "cifar11"), ("--arch", "vgg"), ("--device", "abacus")],
)
def test_bad_options_are_named(folder, option, value):
    result = command(folder, option, value)
    assert isinstance(result.exception, InvalidInputError)
    assert value in str(result.exception)


def test_fine_tuning_behind_a_shield(folder):
    assert command(folder, "--epochs", "1").exit_code == 0
    start = folder.parent / "out" / "small-cifar10.safetensors"
    more = ["--defense", "gaussian:sigma=0.1", "--start", str(start), "--epochs", "1"]
    tuned = command(folder, *more, "--out", str(folder.parent / "tuned"))
    assert tuned.exit_code == 0, tuned.output
    assert "right behind gaussian:sigma=0.1 after 1 epochs" in tuned.stdout
    card = json.loads((folder.parent / "tuned" / "small-cifar10.json").read_text())
    assert card["settings"]["start"]["file"] == start.name
    refused = command(folder, "--defense", "shield9")
    assert "defense='shield9'" in str(refused.exception)


def test_networks_and_schedules_by_option(folder):
    made = command(
        folder, "--arch", "small:blocks=1", "--schedule", "step", "--milestones", "1", "--drop", "0.2",
        "--optimizer", "adam", "--border", "black", "--no-flip", "--json",
    )  # fmt: skip
    assert isinstance(made.exception, InvalidInputError)  # blocks are a list, which no option can hold
    assert "do not fit classifier 'small'" in str(made.exception)
    wrong = command(folder, "--schedule", "step", "--milestones", "1,x")
    assert "milestones='1,x' should be whole numbers" in str(wrong.exception)
