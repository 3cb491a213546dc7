from pathlib import Path

import pytest

from vqshield.files import Journal, write_atomically


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


def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    target = tmp_path / "file"
    write_atomically(target, b"old")
    with pytest.raises(TypeError):
        write_atomically(target, "text, not bytes")  # type: ignore[arg-type]
    assert target.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [target]
