"""Experiment files: what is wrong with one is said with its file, its part and its key."""

from pathlib import Path

import pytest
from small_experiments import CURVES, PART, small, text_of

from vqshield.core.errors import FileFormatError, InvalidInputError
from vqshield_paper.reproduction.experiments import experiment, read_experiment


def test_a_small_file() -> None:
    found = small()
    assert (found.id, found.title, found.shows, found.data) == ("T2", "Small", "table", ["cifar10"])
    (part,) = found.parts
    assert (part.name, part.kind, part.eps, part.runs) == ("few", "accuracy", 8 / 255, 2)
    assert found.text == text_of(PART)


def test_a_file_by_its_path(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(text_of(PART))
    assert experiment(str(path)) == small()


def test_x_is_filled_into_the_defenses() -> None:
    (part,) = small(CURVES).parts
    assert part.settled == [(5, "prd:size=2,codes=5"), (10, "prd:size=2,codes=10")]


@pytest.mark.parametrize(
    ("before", "after", "named"),
    [
        ("runs = 2", "rums = 2", ["unknown key 'rums'", "runs", "eps"]),
        ("count = 8\n", "", ["has no 'count'"]),
        ('name = "few"\n', "", ["has no 'name'"]),
        ('data = "cifar10"\n', "", ["data=None", "cifar100"]),
        ('data = "cifar10"', 'data = "cifar11"', ["data='cifar11'", "mnist"]),
        ('kind = "accuracy"\n', "", ["has no 'kind'"]),
        ('kind = "accuracy"', 'kind = "speed"', ["kind='speed'", "accuracy", "gallery", "gap"]),
        ('kind = "accuracy"', "kind = 3", ["kind=3", "accuracy"]),
        ('name = "few"', 'name = "../few"', ["name='../few'", "letters"]),
        ('name = "few"', 'name = ".."', ["name='..'", "letters"]),
        ('name = "few"', "name = 3", ["name is 3", "text"]),
        ("codes=25", "codes=0", ["codes=0"]),
        ("prd:size=2", "shield9:size=2", ["defense='shield9'", "swrd"]),
        ("prd:size=2", "prd:sise=2", ["'sise'", "size"]),
        ('["prd:size=2,codes=25", ', '["swrd:size=3,codes=25", ', ["'swrd:size=3,codes=25' twice"]),
        ('["prd:size=2,codes=25", ', '["none", ', ["'none' twice"]),
        ('["prd:size=2,codes=25", "swrd:size=3,codes=25"]', '"prd"', ["defenses is 'prd'", "list of texts"]),
        ('["prd:size=2,codes=25", "swrd:size=3,codes=25"]', "[3]", ["defenses[0] is 3", "text"]),
        ('["prd:size=2,codes=25", "swrd:size=3,codes=25"]', "[]", ["defenses=[]", "at least one"]),
        ('eps = "8/255"', 'eps = "much"', ["eps='much'", "8/255"]),
        ('eps = "8/255"', 'eps = "8/255,norm=l2"', ["eps='8/255,norm=l2'", "number"]),
        ('eps = "8/255"', "eps = -1", ["eps=-1"]),
        ('eps = "8/255"', "eps = true", ["eps is True", "number"]),
        ('eps = "8/255"', "eps = nan", ["eps is nan", "number"]),
        ('eps = "8/255"', "eps = [8]", ["eps is [8]", "number"]),
        ("count = 8", "count = 0", ["count=0 should be >= 1"]),
        ("count = 8", 'count = "8"', ["count is '8'", "whole number"]),
        ("runs = 2", "runs = 0", ["runs=0 should be >= 1"]),
        ("adaptive_count = 1", "adaptive_count = -1", ["adaptive_count=-1"]),
        ("runs = 2", 'norm = "l7"', ["norm='l7'", "linf"]),
        ("pgd:steps=2", "pgd:stebs=2", ["'stebs'", "steps"]),
        ("pgd:steps=2,surrogate=none", "hope", ["attack='hope'", "pgd"]),
        ('{ pgd = "pgd:steps=2,surrogate=none" }', '"pgd"', ["attacks is 'pgd'", "table"]),
        ("runs = 2", "x = [1, 2]", ["x=[1.0, 2.0]", "{x}", "both or none"]),
        ("runs = 2", 'x = ["1"]', ["x[0] is '1'", "number"]),
        ("codes=25", "codes={x}", ["x=[]", "{x}", "both or none"]),
    ],
)
def test_what_is_wrong_is_named_with_file_and_part(before: str, after: str, named: list[str]) -> None:
    assert before in PART
    broken = PART.replace(before, after, 1)
    with pytest.raises(FileFormatError) as found:
        read_experiment(text_of(CURVES.replace('"few"', '"first"'), broken), source="mine.toml")
    assert "mine.toml, part 2" in str(found.value)
    assert all(word in str(found.value) for word in named), found.value


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("id = ", ["is not TOML"]),
        ("", ["has no 'id'"]),
        (text_of(PART, id="T9"), ["id='T9'", "T1", "F6b", "E1"]),
        (text_of(PART, shows="song"), ["shows is 'song'", "table", "curves"]),
        ('colour = "red"\n' + text_of(PART), ["unknown key 'colour'", "parts"]),
        (text_of(PART).replace('"Small"', "7"), ["title is 7", "text"]),
        (text_of(), ["has no 'parts'"]),
        ("parts = 3\n" + text_of(), ["parts is 3", "list"]),
        ("parts = []\n" + text_of(), ["parts=[]", "[[parts]]"]),
        ("parts = [3]\n" + text_of(), ["parts[0] is 3", "table"]),
        (text_of(PART, PART), ["two parts have the name 'few'"]),
    ],
)
def test_what_is_wrong_with_a_whole_file_is_named(text: str, named: list[str]) -> None:
    with pytest.raises(FileFormatError) as found:
        read_experiment(text, source="mine.toml")
    assert all(word in str(found.value) for word in ["mine.toml", *named]), found.value


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        ('of = "T9"', ["of='T9'", "F4"]),
        ('of = "mine.toml"', ["of='mine.toml'", "F4"]),
        ('of = "E1"', ["of='E1'", "no accuracies"]),
        ('of = "F4"\ndata = ["mnist"]', ["of='F4'", "mnist", "no accuracies"]),
        ('of = "F4"\ndata = "mnist"', ["data is 'mnist'", "list of texts"]),
        ('of = "F4"\neps = 1', ["unknown key 'eps'"]),
        ("", ["has no 'of'"]),
    ],
)
def test_what_is_wrong_with_a_view_of_another_experiment_is_named(keys: str, named: list[str]) -> None:
    with pytest.raises(FileFormatError) as found:
        small(f'\n[[parts]]\nkind = "gap"\n{keys}\n', id="F9", shows="curves")
    assert all(word in str(found.value) for word in ["small.toml, part 1", *named]), found.value


def test_an_unknown_id_is_answered_with_those_there_are() -> None:
    with pytest.raises(InvalidInputError, match=r"'T9' is not known; give one of T1, T2.*A1, E1, or a .toml"):
        experiment("T9")


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"none\.toml is not a file; .*T1"):
        experiment(str(tmp_path / "none.toml"))


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    path = tmp_path / "bytes.toml"
    path.write_bytes(b"id = \xff\xfe")
    with pytest.raises(FileFormatError, match=r"bytes\.toml is not UTF-8 text"):
        experiment(str(path))
