"""Files that are whole or not there, and notes that survive whatever ends the program."""

import json
import os
import secrets
from pathlib import Path
from typing import Any


def write_atomically(path: Path, content: bytes) -> None:
    """Write beside the target and move: a reader or a crash never meets half a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # A name of its own beside the target: replacing is atomic only within one file system.
    temporary = path.with_name(f".vqshield-{secrets.token_hex(8)}.part")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_json(path: Path, value: Any) -> None:
    """A JSON file, whole or not there."""
    write_atomically(path, (json.dumps(value, indent=1) + "\n").encode())


class Journal(dict[str, Any]):
    """A dict of JSON values that is on the disk as soon as an entry is made: one line each, only appended to.

    Half a line, of a program that was killed while writing it, is dropped.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path
        lines = path.read_bytes().splitlines(keepends=True) if path.is_file() else []
        for line in lines:
            if line.endswith(b"\n"):
                key, value = json.loads(line)
                super().__setitem__(key, value)
        if lines and not lines[-1].endswith(b"\n"):
            os.truncate(path, sum(map(len, lines[:-1])))

    def __setitem__(self, key: str, value: Any) -> None:
        """Write the entry and wait for the disk."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("ab") as file:
            file.write(json.dumps([key, value]).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        super().__setitem__(key, value)
