"""`vqshield purify` from the outside: exit codes, streams, JSON, reproducibility."""

import json
from importlib import import_module

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from vqshield.cli.application import app


@pytest.fixture
def album(tmp_path):
    for number, name in enumerate(("a.png", "sub/b.jpg")):
        path = tmp_path / "album" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(number).integers(0, 256, (10, 12, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(path)
    return tmp_path / "album"


def purify(*arguments):
    return CliRunner().invoke(app, ["purify", *map(str, arguments)])


def test_a_folder_in_a_folder_out(album, tmp_path):
    result = purify(album, "--out", tmp_path / "out")
    assert result.exit_code == 0, result.output
    assert "2 of 2 pictures quantized with swrd" in result.stdout
    assert Image.open(tmp_path / "out" / "sub" / "b.png").size == (12, 10)


def test_the_picture_is_quantized(album, tmp_path):
    purify(album / "a.png", "--out", tmp_path, "--defense", "randdisc:codes=2,sigma=0,tau=0")
    colours = np.asarray(Image.open(tmp_path / "a.png")).reshape(-1, 3)
    assert len(np.unique(colours, axis=0)) == 2


@pytest.mark.parametrize("mode", ["L", "LA", "RGBA"])
def test_grey_and_alpha_come_out_as_they_went_in(tmp_path, mode):
    pixels = np.random.default_rng(0).integers(0, 256, (10, 12, 4), dtype=np.uint8)
    Image.fromarray(pixels).convert(mode).save(tmp_path / "in.png")
    assert purify(tmp_path / "in.png", "--out", tmp_path / "out").exit_code == 0
    with Image.open(tmp_path / "in.png") as before, Image.open(tmp_path / "out" / "in.png") as after:
        assert after.mode == mode
        assert np.array_equal(np.asarray(after), np.asarray(before)) is False
        if "A" in mode:
            assert np.array_equal(np.asarray(after)[..., -1], np.asarray(before)[..., -1])


def test_equal_seeds_give_equal_files_and_no_seed_gives_fresh_noise(album, tmp_path):
    written = []
    for number, seed in enumerate((["--seed", 7], ["--seed", 7], ["--seed", 8], [], [])):
        out = tmp_path / str(number)
        assert purify(album, "--out", out, *seed).exit_code == 0
        written.append([(out / name).read_bytes() for name in ("a.png", "sub/b.png")])
    assert written[0] == written[1]
    assert written[0] != written[2]
    assert written[3] != written[4]


def test_a_seeded_file_does_not_depend_on_its_company(album, tmp_path):
    purify(album, "--out", tmp_path / "all", "--seed", 7)
    purify(album / "a.png", "--out", tmp_path / "one", "--seed", 7)
    assert (tmp_path / "all" / "a.png").read_bytes() == (tmp_path / "one" / "a.png").read_bytes()


def test_json_is_one_object_with_every_file(album, tmp_path):
    (album / "broken.png").write_bytes(b"\x89PNG but no more")
    result = purify(album, "--out", tmp_path / "out", "--json", "--seed", 3, "--defense", "prd:codes=4")
    assert result.exit_code == 1
    answer = json.loads(result.stdout)
    assert answer["defense"] == "prd"
    assert answer["seed"] == 3
    assert answer["settings"]["codes"] == 4
    assert answer["settings"]["size"] == 2
    assert [set(file) for file in answer["files"]] == [
        {"input", "output", "width", "height", "seconds", "error", "skipped"}
    ] * 3
    fine, broken, _ = answer["files"]
    assert fine["output"] == str(tmp_path / "out" / "a.png")
    assert (fine["width"], fine["height"], fine["error"]) == (12, 10, None)
    assert (broken["output"], broken["width"]) == (None, None)
    assert "broken.png" in broken["error"]
    assert "broken.png" in result.stderr


def test_without_a_seed_the_answer_gives_none_away(album, tmp_path):
    answer = json.loads(purify(album, "--out", tmp_path / "out", "--json").stdout)
    assert answer["seed"] is None
    assert "seed" not in answer["settings"]


def test_a_second_run_skips_what_is_finished_and_lists_what_is_not_its_own(album, tmp_path):
    out = tmp_path / "out"
    assert purify(album, "--out", out).exit_code == 0
    before = {path: path.read_bytes() for path in out.rglob("*.png")}
    again = purify(album, "--out", out)
    assert (again.exit_code, again.stderr) == (0, "")
    assert "2 of 2 pictures quantized" in again.stdout
    assert "2 of them by an earlier run" in again.stdout
    assert {path: path.read_bytes() for path in out.rglob("*.png")} == before
    other = purify(album, "--out", out, "--seed", 1, "--json")
    assert other.exit_code == 1
    assert all(f"{out / name} exists" in other.stderr for name in ("a.png", "sub/b.png"))
    Image.new("RGB", (12, 10)).save(album / "a.png")
    changed = purify(album, "--out", out, "--json")
    assert changed.exit_code == 1
    assert "a.png exists and is not recorded as made from this picture" in changed.stderr
    assert [file["skipped"] for file in json.loads(changed.stdout)["files"]] == [False, True]
    assert purify(album, "--out", out, "--overwrite").exit_code == 0
    assert all(path.read_bytes() != content for path, content in before.items())


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--defense", "shield9"], ["shield9", "swrd"]),
        (["--defense", "swrd:colour=3"], ["'colour'", "size"]),
        (["--defense", "swrd:size=0"], ["size=0"]),
        (["--defense", "swrd:tau=4/0"], ["4/0"]),
        (["--defense", "prd:padding=mirror"], ["mirror", "reflect"]),
        (["--defense", "swrd:seed=1", "--seed", "2"], ["seed=2", "seed=1"]),
        (["--seed", "-1"], ["-1"]),
        (["--max-pixels", "0"], ["max_pixels=0"]),
    ],
)
def test_bad_options_end_before_any_work(album, tmp_path, arguments, named):
    result = purify(album, "--out", tmp_path / "out", *arguments)
    assert result.exit_code == 2
    assert all(word in result.stderr for word in named), result.stderr
    assert "Traceback" not in result.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("content", [b"", b"text", b"GIF89a"])
def test_another_kind_of_file_named_outright_is_an_error(tmp_path, content):
    (tmp_path / "notes.txt").write_bytes(content)
    result = purify(tmp_path / "notes.txt", "--out", tmp_path / "out")
    assert result.exit_code == 1
    assert "notes.txt" in result.stderr


def test_a_picture_over_the_pixel_limit_is_refused(album, tmp_path):
    result = purify(album / "a.png", "--out", tmp_path / "out", "--max-pixels", 100)
    assert result.exit_code == 1
    assert "more than the allowed 100 pixels" in result.stderr


def test_ctrl_c_leaves_only_whole_files_and_the_next_run_continues(album, tmp_path, monkeypatch):
    library = import_module("vqshield.images.purify")

    def interrupted(path, content):
        if path.name == "b.png":
            raise KeyboardInterrupt
        write_atomically(path, content)

    write_atomically, out = library.write_atomically, tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr(library, "write_atomically", interrupted)
        result = purify(album, "--out", out)
    assert result.exit_code == 130
    assert result.stderr == (
        f"interrupted: what is finished is in {out}; run the same command again to continue\n"
    )
    assert [path.name for path in out.rglob("*.png") if path.is_file()] == ["a.png"]
    before = (out / "a.png").read_bytes()
    continued = purify(album, "--out", out)
    assert continued.exit_code == 0
    assert "2 of 2 pictures quantized with swrd" in continued.stdout
    assert "1 of them by an earlier run" in continued.stdout
    assert (out / "a.png").read_bytes() == before


def test_a_file_name_cannot_steer_the_terminal(tmp_path):
    evil = tmp_path / "a\x1b[2J\x9b31m\u202e\nerror: forged\r.png"
    result = purify(evil, "--out", tmp_path / "out")
    assert result.exit_code == 1
    assert result.stderr.count("\n") == 1
    assert result.stderr.rstrip("\n").isprintable()
    assert r"a\x1b[2J\x9b31m\u202e\nerror: forged\r.png" in result.stderr
    evil.write_bytes(b"no picture")
    result = purify(evil, "--out", tmp_path / "out")
    assert result.stderr.rstrip("\n").isprintable()
    assert (result.exit_code, result.stderr.count("\n")) == (1, 1)
