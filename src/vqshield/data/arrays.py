"""Images that are arrays already: an ``.npz`` file.

An ``.npz`` file is a zip of ``.npy`` files. numpy's own reader trusts a header, and allocates the array that
it promises. This one compares header, zip directory and file first, reads only the rows that are needed, and
evaluates and unpickles nothing.
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
import torch
from torch import Tensor

from vqshield.core.errors import FileFormatError, InvalidInputError
from vqshield.core.files import check_size
from vqshield.data.base import MAX_CLASSES, ImageSet, check_class_count, check_label_range

Array = npt.NDArray[Any]

CHANNELS = (1, 3)
PIXEL_TYPES = ("uint8", "float16", "float32", "float64")
MOST_CLASS_NAME = 1000  # characters
MAGIC = b"\x93NUMPY"
LENGTH_BYTES = {1: 2, 2: 4}  # by version; version 3 differs only in names of fields
MOST_HEADER = 10_000  # numpy's own limit
BLOCK = 16 << 20  # bytes read at a time


def read_npz(split: str, folder: Path, limit: int | None) -> ImageSet:
    """Read ``images`` and ``labels`` (and ``classes``, where there is one) from SPLIT.npz or the file given.

    images: uint8, or floats in [0,1], which are rounded to bytes; (n, h, w), (n, h, w, c) or (n, c, h, w), of
    either byte order. limit: how many of them are read and, where they are packed, unpacked.
    """
    path = folder if folder.suffix == ".npz" else folder / f"{split}.npz"
    if not path.is_file():
        raise InvalidInputError(f"{path} does not exist; give an .npz file or a folder with {split}.npz")
    with _named(path), zipfile.ZipFile(path) as opened:
        entries = {entry.filename.removesuffix(".npy"): entry for entry in opened.infolist()}
        wanted = [name for name in ("images", "labels", "classes") if name in entries]
        arrays = {name: _member(path, opened, entries[name]) for name in wanted}
    for name in ("images", "labels"):
        if name not in arrays:
            known = ", ".join([*entries][:10]) or "none"
            raise FileFormatError(f"{path} has no array {name!r}; it has {known}")
    pixels = arrays["images"]
    labels = _labels(arrays["labels"], count=pixels.shape[0] if pixels.shape else 0)
    check_label_range(str(path), (int(labels.min()), int(labels.max())), MAX_CLASSES)
    return ImageSet(
        name=path.name,
        images=_images(pixels, limit),
        labels=torch.from_numpy(labels.astype(np.int64))[:limit],
        classes=_class_names(arrays["classes"]) if "classes" in arrays else _numbered(labels.max()),
    )


@dataclass(frozen=True)
class _Member:
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


def _labels(array: _Member, *, count: int) -> Array:
    if len(array.shape) != 1 or array.dtype.kind not in "iu" or not array.shape[0]:
        raise FileFormatError(
            f"{array.path}: labels are {array.dtype} of shape {array.shape}; give whole numbers (n,)"
        )
    if array.shape[0] != count:
        raise FileFormatError(f"{array.path} has {count} images but {array.shape[0]} labels")
    return array.read()


def _images(array: _Member, limit: int | None) -> Tensor:
    where = str(array.path)
    if array.dtype.newbyteorder("=").name not in PIXEL_TYPES:
        raise FileFormatError(
            f"{where}: images are {array.dtype}; give uint8, or floats in [0,1] ({', '.join(PIXEL_TYPES)})"
        )
    if len(array.shape) not in (3, 4) or 0 in array.shape:
        raise _wrong_shape(where, array.shape)
    count = array.shape[0] if limit is None else min(limit, array.shape[0])
    blocks = array.blocks(count)
    parts = [as_bytes(_channels_first(torch.from_numpy(block.copy()), where), where) for block in blocks]
    return torch.cat(parts)


def _class_names(array: _Member) -> tuple[str, ...]:
    kind = array.dtype.kind
    if kind not in "USiu" or len(array.shape) != 1:
        raise FileFormatError(
            f"{array.path}: classes are {array.dtype} of shape {array.shape}; give texts or numbers (n,)"
        )
    check_class_count(array.path.name, array.shape[0])
    if array.dtype.itemsize > 4 * MOST_CLASS_NAME:
        raise FileFormatError(
            f"{array.path}: classes are {array.dtype}; a name has at most {MOST_CLASS_NAME} characters"
        )
    values = array.read().tolist()
    return tuple(each.decode("utf-8", "replace") if isinstance(each, bytes) else str(each) for each in values)


def _numbered(highest: int) -> tuple[str, ...]:
    return tuple(map(str, range(int(highest) + 1)))


def _channels_first(images: Tensor, where: str) -> Tensor:
    if images.ndim == 3:
        return images[:, None]
    if images.ndim == 4 and images.shape[1] in CHANNELS:
        return images
    if images.ndim == 4 and images.shape[3] in CHANNELS:
        return images.permute(0, 3, 1, 2).contiguous()
    raise _wrong_shape(where, tuple(images.shape))


def _wrong_shape(where: str, shape: tuple[int, ...]) -> FileFormatError:
    return FileFormatError(
        f"{where}: images of shape {shape} should be "
        "(n, h, w), (n, h, w, c) or (n, c, h, w), with c 1 or 3 and no side 0"
    )


def as_bytes(images: Tensor, where: str) -> Tensor:
    """Bytes as they are, floats in [0,1] rounded; ``where`` is what a message calls them."""
    if images.dtype == torch.uint8:
        return images
    if not images.is_floating_point():
        raise InvalidInputError(f"{where}: pixels of {images.dtype} should be uint8, or floats in [0,1]")
    if not bool(((images >= 0) & (images <= 1)).all()):  # nan fails both
        raise InvalidInputError(
            f"{where}: pixels from {float(images.min()):g} to {float(images.max()):g} should lie in [0,1]; "
            "leave normalisation to the classifier"
        )
    return (images * 255).round().to(torch.uint8)


def _member(path: Path, opened: zipfile.ZipFile, entry: zipfile.ZipInfo) -> _Member:
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
    member = _Member(path, entry, before, *header)
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
        raise FileFormatError(f"{path} is not a whole .npz file of plain arrays: {error}") from error
    except (NotImplementedError, RuntimeError, OverflowError) as error:  # encrypted, or newer
        raise FileFormatError(f"{path} is a zip file that cannot be read: {error}") from error
