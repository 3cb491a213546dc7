"""Arrays of an ``.npz`` file, read within bounds: an ``.npz`` file is a zip of ``.npy`` files.

numpy's own reader trusts a header, and makes room for the array that it promises. This one compares header,
zip directory and file first, reads only the rows that are asked for, and evaluates and unpickles nothing.
"""

import ast
import math
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from vqshield.core.errors import FileFormatError
from vqshield.core.files import check_size

Array = npt.NDArray[Any]

MAGIC = b"\x93NUMPY"
LENGTH_BYTES = {
    1: 2,
    2: 4,
}  # by version; version 3 differs in names of fields, which these arrays do not have
MOST_HEADER = 10_000  # numpy's own limit
BLOCK = 16 << 20  # bytes read at a time


@dataclass(frozen=True)
class Member:
    """One array of the file: what its header says, which the zip directory confirms."""

    path: Path
    entry: zipfile.ZipInfo
    start: int  # bytes before the values
    dtype: "np.dtype[Any]"
    shape: tuple[int, ...]
    column_major: bool

    def bytes_of(self, rows: int) -> int:
        """Bytes of the first rows."""
        return math.prod(self.shape[1:], start=rows) * self.dtype.itemsize

    def blocks(self, rows: int) -> Iterator[Array]:
        """The first rows, some at a time, in the machine's byte order."""
        needed = self.shape[0] if self.column_major else rows
        check_size(self.path, self.bytes_of(needed), f"array {self.entry.filename!r}")
        with _named(self.path), zipfile.ZipFile(self.path) as opened, opened.open(self.entry) as file:
            _exactly(file, self.start)
            if self.column_major:
                whole = self._values(_exactly(file, self.bytes_of(needed)))
                yield whole.reshape(self.shape[::-1]).T[:rows]
                return
            step = max(1, BLOCK // max(1, self.bytes_of(1)))
            for first in range(0, rows, step):
                count = min(step, rows - first)
                yield self._values(_exactly(file, self.bytes_of(count))).reshape(count, *self.shape[1:])
            if rows == self.shape[0]:
                file.read(1)  # at its end, the zip member's checksum is compared

    def read(self) -> Array:
        """The whole array."""
        return np.concatenate(list(self.blocks(self.shape[0])))

    def _values(self, content: bytes) -> Array:
        values = np.frombuffer(content, dtype=self.dtype)
        return values.astype(self.dtype.newbyteorder("="), copy=False)


def members(path: Path, names: tuple[str, ...]) -> dict[str, Member]:
    """The arrays with these names, as far as they are there; only their headers have been read."""
    with _named(path), zipfile.ZipFile(path) as opened:
        present = {entry.filename.removesuffix(".npy"): entry for entry in opened.infolist()}
        return {name: _member(path, opened, present[name]) for name in names if name in present}


def names(path: Path) -> list[str]:
    """The names of all arrays."""
    with _named(path), zipfile.ZipFile(path) as opened:
        return [name.removesuffix(".npy") for name in opened.namelist()]


def _member(path: Path, opened: zipfile.ZipFile, entry: zipfile.ZipInfo) -> Member:
    if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ValueError(f"array {entry.filename!r} is packed in a way that numpy does not use")
    with opened.open(entry) as file:
        start = _exactly(file, len(MAGIC) + 2)
        version = start[len(MAGIC)]
        if start[: len(MAGIC)] != MAGIC or version not in LENGTH_BYTES:
            raise ValueError(f"array {entry.filename!r} starts with {start.hex()}, as no plain array does")
        length = int.from_bytes(_exactly(file, LENGTH_BYTES[version]), "little")
        if length > MOST_HEADER:
            raise ValueError(f"the header of {entry.filename!r} has {length} bytes, of at most {MOST_HEADER}")
        header = _header(_exactly(file, length).decode("latin1"), entry.filename)
        before = len(start) + LENGTH_BYTES[version] + length
    member = Member(path, entry, before, *header)
    promised, held = member.bytes_of(member.shape[0] if member.shape else 1), entry.file_size - before
    if promised != held:
        raise ValueError(
            f"array {entry.filename!r} should have {promised} bytes for {member.dtype} of shape "
            f"{member.shape}, and has {held}"
        )
    return member


def _header(text: str, name: str) -> tuple["np.dtype[Any]", tuple[int, ...], bool]:
    try:
        found = ast.literal_eval(text)
        dtype, shape, column_major = found["descr"], found["shape"], found["fortran_order"]
    except (SyntaxError, ValueError, TypeError, KeyError, MemoryError, RecursionError) as error:
        raise ValueError(f"the header of {name!r} is not that of a plain array") from error
    whole = isinstance(shape, tuple) and all(type(side) is int and side >= 0 for side in shape)
    if not isinstance(dtype, str) or not whole or not isinstance(column_major, bool):
        raise ValueError(f"the header of {name!r} is not that of a plain array: {text.strip()[:200]!r}")
    try:
        known = np.dtype(dtype)
    except (TypeError, ValueError, SyntaxError) as error:
        raise ValueError(f"the header of {name!r} names the unknown type {dtype[:60]!r}") from error
    if known.hasobject or known.names is not None or known.subdtype is not None:
        raise ValueError(f"{name!r} holds {dtype[:60]!r}, not the numbers or texts of plain arrays")
    return known, shape, column_major


def _exactly(file: IO[bytes], count: int) -> bytes:
    content = file.read(count)
    if len(content) < count:
        raise EOFError(f"it ends {count - len(content)} bytes early")
    return content


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Whatever zipfile says of a broken file, with the file's name."""
    try:
        yield
    except FileFormatError:
        raise
    except (OSError, EOFError, zipfile.BadZipFile, zlib.error, ValueError) as error:
        raise FileFormatError(f"{path} is no whole .npz file of plain arrays: {error}") from error
    except (NotImplementedError, RuntimeError, OverflowError) as error:  # encrypted, or newer
        raise FileFormatError(f"{path} is a zip file that cannot be read: {error}") from error
