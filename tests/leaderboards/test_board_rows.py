"""Rows of a leaderboard: one file each, and errors that name the file and the key."""

from pathlib import Path

import pytest

from vqshield.classifiers import BUNDLED
from vqshield.core.errors import FileFormatError, InvalidInputError
from vqshield.leaderboards.rows import ALL, BoardRow, list_rows, read_rows


def test_every_bundled_row_is_read_and_the_quantizers_are_no_controls() -> None:
    rows = read_rows([ALL])
    assert [row.name for row in rows] == list_rows()
    assert [row.name for row in rows if not row.control] == ["randdisc", "prd", "swrd"]
    assert {row.classifier for row in rows} == {BUNDLED}
    assert all(row.made_by and row.paper for row in rows if row.defense != "none")


def test_a_file_in_a_folder_is_a_row(tmp_path: Path) -> None:
    (tmp_path / "b.toml").write_text('name = "blur"\ndefense = "median:size=3"\ntitle = "Blur"\n')
    (tmp_path / "a.toml").write_text('name = "own"\ndefense = "none"\nclassifier = "net.safetensors"\n')
    (tmp_path / "net.safetensors").write_bytes(b"")
    own, blur = read_rows([tmp_path])
    assert own.classifier == str(tmp_path / "net.safetensors"), "looked for beside the row's file"
    assert (blur.shown, own.shown) == ("Blur", "no defense")
    assert read_rows([str(tmp_path / "b.toml"), "bare"])[0] == blur


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('name = "a b"\ndefense = "none"', r"row\.toml: name='a b' should be letters, digits and hyphens"),
        ('name = "a"', r"row\.toml has no 'defense'"),
        ('name = "a"\ndefense = "none"\nmadeby = "me"', r"row\.toml has the unknown key 'madeby'.*made_by"),
        ('name = "a"\ndefense = "swdr"', r"row\.toml\.defense: .*swrd"),
        ('name = "a"\ndefense = "none"\ncontrol = 1', r"row\.toml\.control is 1; it should be true or false"),
        ('name = "a"\ndefense = "none"\nclassifier = "no.safetensors"', r"row\.toml\.classifier is 'no\."),
        ("name = ", r"row\.toml is not TOML"),
    ],
)
def test_a_file_that_is_no_row_is_named_with_its_key(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "row.toml"
    path.write_text(text)
    with pytest.raises(FileFormatError, match=message):
        read_rows([path])


def test_what_is_no_row_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"row 'swdr' is not known.*swrd"):
        read_rows(["swdr"])
    with pytest.raises(InvalidInputError, match=r"holds no \.toml file"):
        read_rows([tmp_path])
    with pytest.raises(InvalidInputError, match="no row is given"):
        read_rows([])
    with pytest.raises(InvalidInputError, match="two rows have the name 'bare'"):
        read_rows(["bare", BoardRow(name="bare", defense="jpeg")])
