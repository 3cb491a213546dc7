"""No file, whatever it promises, ends in anything but our error, or fills the memory."""

import json
import subprocess
import sys
from pathlib import Path

import hostile_files
import pytest
from hostile_files import GIB, ROWS, Row

from vqshield.core.errors import FileFormatError
from vqshield.data import load


@pytest.fixture(scope="module")
def outcomes() -> dict[str, dict[str, object]]:
    """All rows, read in one process that cannot get more than 1 GiB."""
    if sys.platform != "linux":
        pytest.skip("memory is bounded and measured as Linux does it")
    done = subprocess.run(
        [sys.executable, hostile_files.__file__], capture_output=True, text=True, timeout=500
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


@pytest.mark.parametrize("row", ROWS, ids=[row.name for row in ROWS])
def test_a_hostile_file_is_refused_by_name_and_in_little_memory(outcomes, row: Row) -> None:
    found = outcomes[row.name]
    assert found["ours"], found["error"]
    assert row.message in found["message"]
    assert found["file"] in found["message"] or "mnist test in" in found["message"]
    assert found["message"].isprintable()
    assert found["peak"] < GIB


def test_the_table_covers_every_format() -> None:
    names = [row.name for row in ROWS]
    assert len(names) == len(set(names)) >= 40
    assert {name.split()[0] for name in names} >= {
        "npz",
        "idx",
        "cifar",
        "picture",
        "safetensors",
        "toml",
        "json",
    }


def test_a_limit_bounds_what_is_unpacked(tmp_path: Path) -> None:
    """4 images of a packed array of 3 GiB: refused as a whole, but the first four are there."""
    path = hostile_files.npz_bomb(tmp_path)
    data = load("npz", "test", path, limit=4)
    assert data.images.shape == (4, 3, 32, 32)
    with pytest.raises(FileFormatError, match="would take 3 GiB"):
        load("npz", "test", path)
