"""Files from anywhere, read within bounds; files of our own, whole or not there.

A file may lie: a few kilobytes can promise, or unpack to, more than any memory holds. So whatever is read in
one piece goes through ``check_size`` (by its length) and ``parse_json`` or ``parse_toml`` (by its nesting).
"""

import json
import os
import secrets
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from vqshield.core.errors import FileFormatError

MODEST = 256 << 20
"""Bytes that any file may unpack to."""
MOST_EXPANSION = 100
"""Times its size on the disk that a larger file may unpack to. Photographs pack to a half, digits to a fifth;
what packs a thousandfold is a bomb."""
MOST_TEXT = 64 << 20
"""Bytes of the longest text (a table of labels, an experiment, a manifest) that is read."""


def stored_bytes(path: Path) -> int:
    """The bytes that a file takes on the disk, which a sparse file has fewer of than it claims."""
    status = path.stat()
    blocks = getattr(status, "st_blocks", None)
    return status.st_size if blocks is None else min(status.st_size, blocks * 512)


def check_size(path: Path, wanted: int, what: str) -> None:
    """Refuse to read more bytes than a file of that size can honestly hold.

    Raises:
        FileFormatError: where ``what``, of ``wanted`` bytes, exceeds both limits of this module.
    """
    if wanted > MODEST and wanted > MOST_EXPANSION * (stored := stored_bytes(path)):
        raise FileFormatError(
            f"{path}: {what} would take {_size(wanted)}, from {_size(stored)} on the disk; "
            f"more than {_size(MODEST)} is read only up to {MOST_EXPANSION} times a file's size"
        )


def file_exists(path: Path) -> bool:
    """Whether there is such a file, for names from a table: some cannot be those of a file at all."""
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
    """The value of a JSON text; ``where`` is the file's name, for the message of an error."""
    return _parsed(json.loads, text, where, "JSON")


def parse_toml(text: str, where: object, *, parse_float: Callable[[str], Any] = float) -> dict[str, Any]:
    """The table of a TOML text; ``where`` is the file's name, for the message of an error."""
    table: dict[str, Any] = _parsed(
        lambda text: tomllib.loads(text, parse_float=parse_float), text, where, "TOML"
    )
    return table


def _parsed(parse: Callable[[Any], Any], text: str | bytes, where: object, kind: str) -> Any:
    try:
        return parse(text)
    except RecursionError as error:
        raise FileFormatError(f"{where} is nested too deeply to be read as {kind}") from error
    except (
        ValueError
    ) as error:  # also numbers of more digits than Python converts, and bytes that are no UTF-8
        raise FileFormatError(f"{where} is not {kind}: {error}") from error


def refuse_symlink(path: Path) -> None:
    """Refuse a symbolic link before something is appended: its target may be any file of the user."""
    if path.is_symlink() or (path.exists() and not path.is_file()):
        kind = "a symbolic link" if path.is_symlink() else "not a regular file"
        raise FileFormatError(f"{path} is {kind}; remove it, or choose another folder")


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
    """Write a JSON file, whole or not at all."""
    write_atomically(path, (json.dumps(value, indent=1) + "\n").encode())


class Journal(dict[str, Any]):
    """A dict of JSON values that is on the disk as soon as an entry is made: one line each, only appended to.

    The half line of a program that was killed while writing is dropped. Any other line that is not a pair of
    a key and a value is a FileFormatError that names file and line; so is a link, which could lead anywhere.
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

    def __setitem__(self, key: str, value: Any) -> None:
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
