from pathlib import Path

import pytest

from vqshield.core.errors import FileFormatError
from vqshield.core.files import MODEST, Journal, check_size, read_text, stored_bytes, write_atomically


def test_a_journal_is_read_back_in_order_with_the_last_entry_of_a_key(tmp_path: Path) -> None:
    path = tmp_path / "new" / "journal"
    journal = Journal(path)
    assert not path.exists()
    journal["a"], journal["b"] = 1, [1.5, {"x": None}]
    journal["a"] = "again"
    assert dict(Journal(path)) == dict(journal) == {"a": "again", "b": [1.5, {"x": None}]}


@pytest.mark.parametrize("kept", range(1, 12))
def test_half_a_line_is_dropped_and_the_next_entry_is_whole(tmp_path: Path, kept: int) -> None:
    path = tmp_path / "journal"
    Journal(path)["a"] = 1
    whole = path.read_bytes()
    path.write_bytes(whole + b'["b", [1, 2]]\n'[:kept])
    journal = Journal(path)
    assert dict(journal) == {"a": 1}
    journal["c"] = 3
    assert dict(Journal(path)) == {"a": 1, "c": 3}


def test_a_journal_does_not_follow_a_symbolic_link(tmp_path: Path) -> None:
    (tmp_path / "target").write_bytes(b"[")  # else the half line would be cut off
    (tmp_path / "journal").symlink_to(tmp_path / "target")
    with pytest.raises(FileFormatError, match="journal is a symbolic link"):
        Journal(tmp_path / "journal")
    assert (tmp_path / "target").read_bytes() == b"["


def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    target = tmp_path / "file"
    write_atomically(target, b"old")
    with pytest.raises(TypeError):
        write_atomically(target, "text, not bytes")  # type: ignore[arg-type]
    assert target.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [target]


def test_a_file_may_unpack_to_much_but_not_to_anything(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 4096)
    check_size(path, MODEST, "the array")
    with pytest.raises(FileFormatError, match=r"file: the array would take 256 MiB, from 4 KiB on the disk"):
        check_size(path, MODEST + 1, "the array")
    with path.open("r+b") as file:
        file.truncate(1 << 40)  # a hole of a terabyte takes no room on the disk
    assert stored_bytes(path) < 1 << 20
    with pytest.raises(FileFormatError, match="would take 1 TiB"):
        check_size(path, 1 << 40, "the array")


def test_texts_are_utf8_of_bounded_length(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes("\ufeffé\r\nb".encode())
    assert read_text(path) == "é\nb"
    with pytest.raises(FileFormatError, match="8 bytes; a text of at most 7"):
        read_text(path, most=7)
    path.write_bytes(b"\xff")
    with pytest.raises(FileFormatError, match="file is not UTF-8"):
        read_text(path)
