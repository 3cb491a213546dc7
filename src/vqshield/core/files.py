"""Untrusted files, read within bounds; files of our own, written completely or not at all.

A few kilobytes can unpack to more than any memory holds. Whatever is read in one piece therefore goes through
``check_size`` (by its length) and ``parse_json`` or ``parse_toml`` (by its nesting).
"""

import hashlib
import json
import os
import secrets
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from vqshield.core.errors import FileFormatError

Parsed = TypeVar("Parsed")
MODEST = 256 << 20
"""Bytes that any file may unpack to."""
MOST_EXPANSION = 100
"""Factor on its size that a larger file may unpack to: photographs pack to a half, digits to a fifth."""
MOST_TEXT = 64 << 20
"""Bytes of the longest text (a table of labels, an experiment, a manifest) that is read."""


def stored_bytes(path: Path) -> int:
    """The bytes that a file takes on the disk: a sparse file has fewer than its size."""
    status = path.stat()
    blocks = getattr(status, "st_blocks", None)
    return status.st_size if blocks is None else min(status.st_size, blocks * 512)


def check_size(path: Path, wanted: int, what: str) -> None:
    """Refuse to read ``what``, of ``wanted`` bytes, where it exceeds both limits of this module."""
    if wanted > MODEST and wanted > MOST_EXPANSION * (stored := stored_bytes(path)):
        raise FileFormatError(
            f"{path}: {what} would take {_size(wanted)}, from {_size(stored)} on the disk; "
            f"more than {_size(MODEST)} is read only up to {MOST_EXPANSION} times a file's size"
        )


def file_sha256(path: Path) -> str:
    """The SHA-256 of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def file_exists(path: Path) -> bool:
    """Whether there is such a file, for names from a table that no file can have."""
    try:
        return path.is_file()
    except (OSError, ValueError):  # too long, no permission; a zero byte
        return False


def read_text(path: Path, *, most: int = MOST_TEXT) -> str:
    """The text of a UTF-8 file of at most ``most`` bytes."""
    if (size := path.stat().st_size) > most:
        raise FileFormatError(f"{path} has {size} bytes; a text of at most {most} is read")
    try:
        return path.read_bytes().decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise FileFormatError(f"{path} is not UTF-8 text: {error}") from error


def parse_json(text: str | bytes, where: object) -> Any:
    """The value of a JSON text; ``where``: the file's name, for errors."""
    return _parsed(lambda: json.loads(text), where, "JSON")


def parse_toml(text: str, where: object) -> dict[str, Any]:
    """The table of a TOML text; ``where``: the file's name, for errors."""
    return _parsed(lambda: tomllib.loads(text), where, "TOML")


def _parsed(parse: Callable[[], Parsed], where: object, kind: str) -> Parsed:
    try:
        return parse()
    except RecursionError as error:
        raise FileFormatError(f"{where} is nested too deeply to be read as {kind}") from error
    except ValueError as error:  # also numbers with too many digits for Python, and bytes that are not UTF-8
        raise FileFormatError(f"{where} is not {kind}: {error}") from error


def refuse_symlink(path: Path) -> None:
    """Refuse to append to a symbolic link: its target may be any file of the user."""
    if path.is_symlink() or (path.exists() and not path.is_file()):
        kind = "a symbolic link" if path.is_symlink() else "not a regular file"
        raise FileFormatError(f"{path} is {kind}; remove it, or choose another folder")


def write_atomically(path: Path, content: bytes) -> None:
    """Write a temporary file and move it: no reader and no crash ever leaves half a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # In the same folder: replacing is atomic only within one file system.
    temporary = path.with_name(f".vqshield-{secrets.token_hex(8)}.part")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_json(path: Path, value: object) -> None:
    """Write a JSON file, whole or not at all."""
    write_atomically(path, (json.dumps(value, indent=1) + "\n").encode())


class Journal(dict[str, Any]):
    """A dict of JSON values whose entries are on the disk at once: one line each, only appended.

    Half a line of a killed program is dropped. Any other line that is not a pair of a key and a value is a
    FileFormatError that names file and line; so is a symbolic link.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        refuse_symlink(path)
        self.path = path
        whole = 0
        for number, line in enumerate(_lines(path), start=1):
            if not line.endswith(b"\n"):
                os.truncate(path, whole)
                break
            pair = parse_json(line, f"{path}, line {number}")
            if not (isinstance(pair, list) and len(pair) == 2 and isinstance(pair[0], str)):
                raise FileFormatError(f"{path}, line {number} is not a list of a key and a value")
            super().__setitem__(*pair)
            whole += len(line)

    def __setitem__(self, key: str, value: object) -> None:
        """Write the entry and wait for the disk."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("ab") as file:
            file.write(json.dumps([key, value]).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        super().__setitem__(key, value)


def _lines(path: Path) -> Iterator[bytes]:
    if not path.is_file():
        return
    with path.open("rb") as file:
        while line := file.readline(MOST_TEXT + 1):
            if len(line) > MOST_TEXT:
                raise FileFormatError(f"{path} has a line of more than {MOST_TEXT} bytes")
            yield line


def _size(count: int) -> str:
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.4g} {unit}"
        count //= 1024
    return f"{count:.4g} TiB"
