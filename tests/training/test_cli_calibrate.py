"""`vqshield calibrate`, and --calibrate of the commands that evaluate, on the bundled classifier."""

import json
import re

import pytest
from typer.testing import CliRunner

from vqshield.classifiers import load_classifier
from vqshield.cli import leaderboard
from vqshield.cli.application import app
from vqshield.core.errors import InvalidInputError
from vqshield.data import sample
from vqshield.images.files import encode_png

SHIELD = "prd:size=2,codes=4,iterations=2"


def run(*arguments):
    return CliRunner().invoke(app, [*arguments, "--device", "cpu"])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Unlabelled pictures."""
    place = tmp_path_factory.mktemp("pictures")
    for number, image in enumerate(sample(24).images):
        (place / f"{number}.png").write_bytes(encode_png(image.permute(1, 2, 0).contiguous().numpy()))
    return place


def test_weights_and_a_card_are_written_and_the_choice_is_explained(folder, tmp_path):
    done = run("calibrate", "--data", str(folder), "--defense", SHIELD, "--out", str(tmp_path))
    assert done.exit_code == 0, done.output
    assert "24 images; same class as the bare classifier on held-back images" in done.stdout
    printed = re.search(r"^load as (.+)$", done.stdout, re.M)[1]  # from the folder that the command ran in
    assert printed == str(tmp_path / "small-cifar10-calibrated.safetensors")
    assert load_classifier(printed)(sample(2).floats()).shape == (2, 10)
    card = run(
        "calibrate", "--data", "cifar10-sample", "--split", "test", "--limit", "8", "--method", "paired",
        "--defense", SHIELD, "--out", str(tmp_path), "--name", "mine", "--json",
    )  # fmt: skip
    assert json.loads(card.stdout) == json.loads((tmp_path / "mine.json").read_text())


def test_a_classifier_that_nothing_improves_is_kept_and_the_command_says_so(folder, tmp_path):
    done = run("calibrate", "--data", str(folder), "--defense", "bitdepth:bits=8", "--out", str(tmp_path))
    assert done.exit_code == 0, done.output
    assert "no candidate agrees better: the classifier is kept unchanged" in done.stdout


def test_a_missing_folder_ends_in_one_line(tmp_path):
    done = run("calibrate", "--data", str(tmp_path / "no"), "--out", str(tmp_path))
    assert done.exit_code == 2
    assert "neither a folder nor a data set" in done.stderr


def test_evaluate_measures_the_calibrated_classifier_and_records_it(folder, tmp_path):
    done = run(
        "evaluate", "--calibrate", str(folder), "--defense", SHIELD, "--defense", "prd:codes=5",
        "--limit", "4", "--samples", "1", "--out", str(tmp_path), "--json",
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    summary = json.loads(done.stdout)
    assert "batch norm calibrated" in summary["title"]
    assert summary["manifest"]["batch_norm"] == f"calibrated:data=folder,data_dir={folder.name}"


@pytest.mark.parametrize("command", ["evaluate", "ladder"])
def test_without_a_defense_there_is_nothing_to_calibrate_behind(command, folder, tmp_path):
    done = run(command, "--calibrate", str(folder), "--limit", "2", "--out", str(tmp_path / "out"))
    assert done.exit_code == 2
    assert "--calibrate given without a defense" in done.stderr


def test_the_ladder_has_a_calibrated_control_next_to_the_bare_one(folder, tmp_path):
    arguments = ["ladder", "--calibrate", str(folder), "--defense", SHIELD, "--limit", "2", "--samples", "1",
                 "--calls", "100", "--attack", "pgd:steps=1", "--out", str(tmp_path), "--json"]  # fmt: skip
    done = run(*arguments)
    assert done.exit_code == 0, done.output
    subjects = json.loads(done.stdout)["plan"]["subjects"]
    assert [each["name"] for each in subjects] == ["model", "bare", "calibrated"]
    assert subjects[2]["defense"] == SHIELD
    assert (tmp_path / subjects[2]["classifier"]).is_file()
    assert run(*arguments).exit_code == 0  # the same files: it continues


def test_the_leaderboard_has_a_calibrated_row_for_every_defense(folder, tmp_path, monkeypatch):
    given = []

    def measure(out, rows, *, classifier=None, **_):
        assert classifier is None  # else it would take the place of the calibrated ones
        given.extend(rows)
        raise InvalidInputError("seen")

    monkeypatch.setattr(leaderboard, "measure", measure)
    done = run("leaderboard", "bare", "randdisc", "--calibrate", str(folder), "--out", str(tmp_path))
    assert "seen" in done.stderr
    assert [row.name for row in given] == ["bare", "randdisc", "randdisc-calibrated"]
    assert given[2].shown == f"{given[1].shown}, calibrated"
    assert load_classifier(given[2].classifier)(sample(2).floats()).shape == (2, 10)
