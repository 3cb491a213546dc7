import json
import socket
from pathlib import Path

import pytest

from vqshield.core.environment import environment
from vqshield.core.files import write_atomically


def test_environment_names_versions_and_no_machine() -> None:
    found = environment()
    assert {"vqshield", "python", "torch", "processor", "cores", "device"} <= set(found)
    text = json.dumps(found)
    assert str(Path.home()) not in text
    assert socket.gethostname() not in text


def test_a_failed_write_leaves_the_old_file_whole(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "file"
    write_atomically(target, b"old")
    with pytest.raises(TypeError):
        write_atomically(target, "not bytes")  # type: ignore[arg-type]
    assert target.read_bytes() == b"old"
    assert [path.name for path in target.parent.iterdir()] == ["file"]
