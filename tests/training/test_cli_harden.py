"""`vqshield harden`, end to end on the bundled net and a few records, also after kill -9."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

from vqshield.classifiers import load_classifier
from vqshield.cli.application import app
from vqshield.data import sample

ARGUMENTS = ["--defense", "swrd:iterations=2", "--epochs", "2", "--batch", "8", "--limit", "16",
             "--test-limit", "4", "--device", "cpu"]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Eight random CIFAR-10 records a file."""
    source, place = np.random.default_rng(0), tmp_path_factory.mktemp("data")
    for name in [*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"]:
        records = source.integers(0, 256, (8, 3073), dtype=np.uint8)
        records[:, 0] %= 10
        records.tofile(place / name)
    return place


def command(folder, out, *more):
    return CliRunner().invoke(
        app, ["harden", "--data-dir", str(folder), "--out", str(out), *ARGUMENTS, *more]
    )


def printed_source(output):
    return re.search(r"^load as (.+)$", output, re.M)[1]


def test_the_printed_source_and_that_of_the_card_load(folder, tmp_path, monkeypatch):
    """From the folder that the command ran in, of a network from elsewhere, under the default --out."""
    (tmp_path / "made_here.py").write_text(
        "from torch import nn\n\ndef net():\n    return nn.Sequential(nn.Flatten(), nn.Linear(3072, 10))\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    done = CliRunner().invoke(
        app,
        ["harden", "--data-dir", str(folder), *ARGUMENTS, "--classifier", "made_here:net", "--name", "base"],
    )
    assert done.exit_code == 0, done.output
    card = json.loads((tmp_path / "vqshield-harden" / "base.json").read_text())
    assert (
        printed_source(done.stdout)
        == card["load"]
        == f"made_here:net@{Path('vqshield-harden', 'base.safetensors')}"
    )
    trained = load_file(tmp_path / "vqshield-harden" / "base.safetensors")
    loaded = load_classifier(card["load"]).network.state_dict()
    assert all(torch.equal(loaded[key], value) for key, value in trained.items())


KILLED = """
import os, signal, sys
import torch
torch.set_num_threads({threads})
from vqshield.cli import application, bars

def report(self, doing, done, total):
    if doing.startswith("epoch 2/"):
        os.kill(os.getpid(), signal.SIGKILL)

bars.LogLines.report = report
application.app({arguments!r})
"""


@pytest.mark.skipif(sys.platform == "win32", reason="there is no kill -9")
def test_killed_and_resumed_the_file_is_that_of_an_unbroken_run(folder, tmp_path):
    unbroken = command(folder, tmp_path / "unbroken")
    assert unbroken.exit_code == 0, unbroken.output
    assert "of 4 test images right behind swRD (iterations=2)" in unbroken.stdout
    assert load_classifier(printed_source(unbroken.stdout))(sample(2).floats()).shape == (2, 10)
    arguments = ["harden", "--data-dir", str(folder), "--out", str(tmp_path / "killed"), *ARGUMENTS]
    code = KILLED.format(threads=torch.get_num_threads(), arguments=arguments)
    source = str(Path(__file__).resolve().parents[2] / "src")
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=300,
        env={**os.environ, "PYTHONPATH": source},
    )  # fmt: skip
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert [each.name for each in (tmp_path / "killed").iterdir()] == [
        "small-cifar10-hardened.checkpoint.safetensors"
    ]
    resumed = command(folder, tmp_path / "killed", "--json")
    card = json.loads(resumed.stdout)
    assert [epoch["epoch"] for epoch in card["history"]] == [1, 2]
    files = [tmp_path / each / "small-cifar10-hardened.safetensors" for each in ("unbroken", "killed")]
    assert files[0].read_bytes() == files[1].read_bytes()


def test_what_went_wrong_is_one_line(folder, tmp_path, monkeypatch):
    refused = command(folder, tmp_path / "out", "--defense", "prd:size=40")
    assert refused.exit_code == 2
    assert refused.stderr.strip().endswith("size=40 should be at most min(h, w)=32")
    assert not (tmp_path / "out").exists()

    def full(path, content):
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr("vqshield.training.run.write_atomically", full)
    stopped = command(folder, tmp_path / "out", "--epochs", "1", "--method", "noise:sigma=0.1")
    assert stopped.exit_code == 1
    assert "nothing to resume" in stopped.stderr
    assert "error: No space left on device" in stopped.stderr
    assert "Traceback" not in stopped.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGTERM")
def test_stopped_it_names_its_own_checkpoint_and_resumed_it_says_from_which_epoch(
    folder, tmp_path, monkeypatch
):
    """By SIGTERM; a checkpoint of another run lies in the same folder."""
    other, mine = (tmp_path / f"{each}.checkpoint.safetensors" for each in ("other", "mine"))
    other.write_bytes(b"")
    unheard = []

    def report(self, doing, done, total):
        if doing.startswith("epoch 2/"):
            os.kill(os.getpid(), signal.SIGTERM)

    previous = signal.signal(signal.SIGTERM, lambda number, _: unheard.append(number))
    try:
        with monkeypatch.context() as patch:
            patch.setattr("vqshield.cli.bars.LogLines.report", report)
            stopped = command(folder, tmp_path, "--name", "mine")
    finally:
        signal.signal(signal.SIGTERM, previous)
    assert (stopped.exit_code, unheard) == (143, [])
    last = f"terminated: whole epochs are in {mine}; run the same command to continue"
    assert stopped.stderr.splitlines()[-1] == last
    assert "other" not in stopped.stderr
    resumed = command(folder, tmp_path, "--name", "mine")
    assert resumed.exit_code == 0
    assert "resumed from the checkpoint after epoch 1 of 2" in resumed.stderr
