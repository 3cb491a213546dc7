"""Purifying files: which files, under which names, with which noise, and what happens to the bad ones."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import vqshield as vq
from vqshield.core.errors import FileFormatError, InvalidInputError
from vqshield.images.purify import plan, purify, stream_of


class Negative(vq.Defense):
    """Turns colours around, and remembers the streams it was given."""

    def __init__(self):
        super().__init__(seed=0)
        self.given = []

    def forward(self, images, *, streams=None):
        assert images.dtype == torch.float32
        assert images.dim() == 4
        self.given += streams.tolist()
        return 1 - images

    def settings(self):
        return {}


class Failing(Negative):
    """Raises what it is given."""

    def __init__(self, problem):
        super().__init__()
        self.problem = problem

    def forward(self, images, *, streams=None):
        raise self.problem


def picture(path, size=(12, 10), mode="RGB"):
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(len(path.name)).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    Image.fromarray(pixels).convert(mode).save(path)
    return path


def names(paths, out):
    return [file.target.relative_to(out).as_posix() for file in plan(paths, out)]


# --- which files, which names ---------------------------------------------------------------------------


def test_a_folder_stands_for_its_pictures(tmp_path):
    album = tmp_path / "album"
    for name in ("b.png", "a.JPG", "sub/deep/c.jpeg", ".hidden.png", ".cache/d.png"):
        picture(album / name)
    (album / "notes.txt").write_text("no picture")
    picture(album / "e.gif")
    assert names([album], tmp_path / "out") == ["a.png", "b.png", "sub/deep/c.png"]


def test_a_linked_folder_is_not_followed(tmp_path):
    picture(tmp_path / "album" / "a.png")
    (tmp_path / "album" / "again").symlink_to(tmp_path / "album", target_is_directory=True)
    assert names([tmp_path / "album"], tmp_path / "out") == ["a.png"]


def test_an_output_folder_inside_the_input_is_not_purified_again(tmp_path):
    picture(tmp_path / "a.png")
    picture(tmp_path / "clean" / "a.png")
    assert names([tmp_path], tmp_path / "clean") == ["a.png"]


def test_one_name_for_each_output(tmp_path):
    paths = [picture(tmp_path / name) for name in ("x/cat.png", "x/cat.jpg", "y/Cat.png", "y/cat-2.png")]
    assert names(paths, tmp_path / "out") == ["cat.png", "cat-2.png", "Cat-3.png", "cat-2-2.png"]


def test_a_file_named_twice_is_purified_once(tmp_path):
    path = picture(tmp_path / "album" / "a.png")
    assert names([path, tmp_path / "album", path.parent / ".." / "album" / "a.png"], tmp_path / "out") == [
        "a.png"
    ]


def test_paths_without_a_picture_are_reported_in_the_plan(tmp_path):
    (tmp_path / "empty").mkdir()
    (job,) = plan([tmp_path / "empty"], tmp_path / "out")
    assert job.problem == f"{tmp_path / 'empty'}: no PNG or JPEG file in this folder"


@pytest.mark.parametrize("name", ["missing.png", "x" * 5000])
def test_a_path_that_is_not_there_is_reported_in_the_plan(tmp_path, name):
    (job,) = plan([tmp_path / name], tmp_path / "out")
    assert f"{name}: no such file" in job.problem


def test_the_current_folder_may_be_empty(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (job,) = plan([Path()], Path("out"))
    assert "no PNG or JPEG file" in job.problem


def test_a_folder_that_cannot_be_read_is_reported(tmp_path, monkeypatch):
    def locked(path, onerror):
        onerror(PermissionError(13, "Permission denied", str(path)))
        return iter(())

    monkeypatch.setattr("vqshield.images.purify.os.walk", locked)
    (job,) = plan([tmp_path], tmp_path / "out")
    assert job.problem == f"{tmp_path}: cannot read this folder (Permission denied)"


def test_the_output_must_be_a_folder(tmp_path):
    path = picture(tmp_path / "a.png")
    with pytest.raises(InvalidInputError, match=r"a\.png is a file"):
        plan([path], path)


# --- what is written --------------------------------------------------------------------------------------


def test_one_bad_file_does_not_stop_the_rest(tmp_path):
    good = [picture(tmp_path / "a.png"), picture(tmp_path / "z.png")]
    broken = tmp_path / "broken.jpg"
    broken.write_bytes(b"not a picture")
    missing = tmp_path / "missing.png"
    out = tmp_path / "out"
    results = list(purify([good[0], broken, missing, good[1]], out, defense=Negative()))
    assert [result.error is None for result in results] == [True, False, False, True]
    assert "broken.jpg" in results[1].error
    assert "missing.png: no such file" in results[2].error
    assert results[1].output is None
    assert (results[0].width, results[0].height) == (12, 10)
    assert sorted(path.name for path in out.iterdir()) == ["a.png", "purified.jsonl", "z.png"]


def test_an_input_is_never_overwritten(tmp_path):
    path = picture(tmp_path / "a.png")
    before = path.read_bytes()
    for paths in ([path], [tmp_path]):
        (result,) = purify(paths, tmp_path, defense=Negative(), overwrite=True)
        assert "would overwrite an input" in result.error
    assert path.read_bytes() == before


def test_another_input_is_never_overwritten_either(tmp_path):
    jpeg, png = picture(tmp_path / "a.jpg"), picture(tmp_path / "a.png")
    before = png.read_bytes()
    first, second = purify([jpeg, png], tmp_path, defense=Negative(), overwrite=True)
    assert "would overwrite an input" in first.error
    assert second.output == tmp_path / "a-2.png"
    assert png.read_bytes() == before


def test_earlier_results_stay_unless_asked(tmp_path):
    path, out = picture(tmp_path / "in" / "a.png"), tmp_path / "out"
    old = picture(out / "a.png", size=(3, 3))
    (refused,) = purify([path], out, defense=Negative())
    assert str(old) in refused.error
    assert Image.open(old).size == (3, 3)
    (done,) = purify([path], out, defense=Negative(), overwrite=True)
    assert done.error is None
    assert Image.open(old).size == (12, 10)


def test_a_result_counts_as_finished_for_its_picture_defense_seed_and_content_alone(tmp_path):
    path, out = picture(tmp_path / "a.png"), tmp_path / "out"

    def again(**given):
        (result,) = purify(path, out, **{"defense": "randdisc:codes=3", "seed": 1, **given})
        return result.skipped

    assert [again(), again()] == [False, True]
    assert again(defense=vq.RandDisc(codes=3, seed=1)), "the same defense as an object"
    for other in ({"defense": "randdisc:codes=4"}, {"seed": 2}, {"seed": None}, {"defense": Negative()}):
        (refused,) = purify(path, out, **{"defense": "randdisc:codes=3", "seed": 1, **other})
        assert "is not recorded as made from this picture with these settings" in refused.error
    content = (out / "a.png").read_bytes()
    (out / "a.png").write_bytes(content[:-1])
    assert not again(), "half a file"
    (out / "a.png").unlink()
    assert [again(), again()] == [False, True]
    assert (out / "a.png").read_bytes() == content


@pytest.mark.parametrize("entry", ["1", "null", '{"output": 5}', "[[[]]]"])
def test_a_strange_entry_of_the_journal_is_no_finished_result(tmp_path, entry):
    path, out = picture(tmp_path / "a.png"), tmp_path / "out"
    old = picture(out / "a.png")
    (out / "purified.jsonl").write_text(f'["a.png", {entry}]\n')
    (refused,) = purify(path, out, defense=Negative())
    assert f"{old} exists and is not recorded" in refused.error


@pytest.mark.parametrize("content", ["no JSON\n", '{"a.png": 1}\n', "[" * 100_000 + "\n", None])
def test_a_journal_that_is_none_is_named_and_a_link_is_not_followed(tmp_path, content):
    path, journal = picture(tmp_path / "a.png"), tmp_path / "out" / "purified.jsonl"
    journal.parent.mkdir()
    if content is None:
        journal.symlink_to(tmp_path / "elsewhere")
    else:
        journal.write_text(content)
    with pytest.raises(FileFormatError, match=r"purified\.jsonl"):
        purify(path, journal.parent, defense=Negative())
    assert not (tmp_path / "elsewhere").exists()


def test_a_folder_in_the_way_is_reported(tmp_path):
    path = picture(tmp_path / "in" / "a.png")
    (tmp_path / "out" / "a.png").mkdir(parents=True)
    (result,) = purify([path], tmp_path / "out", defense=Negative(), overwrite=True)
    assert "is a folder" in result.error


def test_a_file_in_the_place_of_a_sub_folder_is_reported(tmp_path):
    picture(tmp_path / "in" / "sub" / "a.png")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "sub").write_text("in the way")
    (result,) = purify([tmp_path / "in"], tmp_path / "out", defense=Negative())
    assert "a.png: cannot write" in result.error


@pytest.mark.parametrize(
    ("size", "settings", "named"),
    [((2, 9), {"size": 3}, "2x9 pixels"), ((4, 4), {"size": 3, "codes": 25}, "codes=25")],
)
def test_a_picture_too_small_for_the_settings(tmp_path, size, settings, named):
    path = picture(tmp_path / "small.png", size=size)
    (result,) = purify([path], tmp_path / "out", defense=vq.SWRD(**settings))
    assert "small.png" in result.error
    assert named in result.error


@pytest.mark.parametrize(
    "problem", [MemoryError(), RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate")]
)
def test_a_picture_too_large_for_the_memory(tmp_path, problem):
    (result,) = purify([picture(tmp_path / "big.png")], tmp_path / "out", defense=Failing(problem))
    assert "big.png: not enough memory" in result.error


def test_a_fault_of_the_defense_is_not_hidden(tmp_path):
    with pytest.raises(RuntimeError, match="shapes"):
        list(
            purify(
                [picture(tmp_path / "a.png")],
                tmp_path / "out",
                defense=Failing(RuntimeError("shapes do not match")),
            )
        )


# --- noise --------------------------------------------------------------------------------------------------


def test_streams_follow_the_name_alone(tmp_path):
    album = tmp_path / "album"
    for name in ("a.png", "b.png", "sub/a.png"):
        picture(album / name)
    together, alone = Negative(), Negative()
    list(purify([album], tmp_path / "one", defense=together))
    list(purify([album / "b.png"], tmp_path / "two", defense=alone))
    assert len(set(together.given)) == 3
    assert alone.given == [together.given[1]]
    assert all(0 <= stream < 2**63 for stream in together.given)


def test_a_collision_of_names_changes_no_pixel(tmp_path):
    first, second = picture(tmp_path / "x" / "cat.png"), picture(tmp_path / "y" / "cat.png")
    also = picture(tmp_path / "x" / "cat.jpg", size=(14, 10))
    crowded = list(purify([first, second, also], tmp_path / "crowd", defense=vq.PRD(seed=3, codes=4)))
    assert [result.output.name for result in crowded] == ["cat.png", "cat-2.png", "cat-3.png"]
    for number, path in enumerate([first, second, also]):
        (alone,) = purify([path], tmp_path / str(number), defense=vq.PRD(seed=3, codes=4))
        assert alone.output.name == "cat.png"
        assert np.array_equal(Image.open(alone.output), Image.open(crowded[number].output))


def test_streams_are_the_same_everywhere():
    # Half of what `printf a.png | b2sum -l 64` says. Fixed: a change would change every seeded result.
    assert stream_of("a.png") == 0xE203797DE73BF656 >> 1
