"""MNIST in its official idx layout, plain or gzipped."""

import gzip
import zlib
from pathlib import Path
from typing import Protocol

import numpy as np
import torch

from vqshield.checks import one_of
from vqshield.data.base import SPLITS, ImageSet
from vqshield.errors import FileFormatError, InvalidInputError

CLASSES = tuple(str(digit) for digit in range(10))
PREFIXES = {"train": "train", "test": "t10k"}
SUBFOLDER = Path("MNIST", "raw")
BYTES_TYPE = 8  # idx's code for unsigned bytes


def read_mnist(*, split: str, folder: Path) -> ImageSet:
    """Read MNIST from ``folder`` or from ``MNIST/raw`` below it."""
    one_of("split", split, SPLITS)
    images = _read(folder, f"{PREFIXES[split]}-images-idx3-ubyte", dimensions=3)
    labels = _read(folder, f"{PREFIXES[split]}-labels-idx1-ubyte", dimensions=1)
    if len(images) != len(labels):
        raise FileFormatError(f"mnist {split} in {folder} has {len(images)} images but {len(labels)} labels")
    if int(labels.max()) > 9:
        raise FileFormatError(f"mnist {split} in {folder}: label {int(labels.max())} is outside 0..9")
    return ImageSet(
        name="mnist",
        images=torch.from_numpy(images[:, None]),
        labels=torch.from_numpy(labels.astype(np.int64)),
        classes=CLASSES,
    )


def _read(folder: Path, name: str, dimensions: int) -> "np.typing.NDArray[np.uint8]":
    for place in (folder / SUBFOLDER, folder):
        for path in (place / name, place / f"{name}.gz"):
            if path.is_file():
                return _parse(path, dimensions)
    raise InvalidInputError(f"{name}[.gz] is neither in {folder} nor in {folder / SUBFOLDER}")


def _parse(path: Path, dimensions: int) -> "np.typing.NDArray[np.uint8]":
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            return _idx(file, path, dimensions)
    except (OSError, EOFError, zlib.error) as error:
        raise FileFormatError(f"{path} cannot be read: {error}") from error


class _Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


def _idx(file: _Readable, path: Path, dimensions: int) -> "np.typing.NDArray[np.uint8]":
    """Parse one idx file: 0, 0, type, number of dimensions, each dimension as big-endian int32, data."""
    magic = bytes([0, 0, BYTES_TYPE, dimensions])
    found = file.read(4)
    if found != magic:
        raise FileFormatError(
            f"{path} starts with {found.hex()!r}; an idx file of this kind starts with {magic.hex()!r}"
        )
    header = file.read(4 * dimensions)
    if len(header) < 4 * dimensions:
        raise FileFormatError(f"{path} ends inside its header")
    shape = tuple(int(length) for length in np.frombuffer(header, dtype=">u4"))
    expected = int(np.prod(shape, dtype=object))
    data = file.read(expected + 1)  # one more than promised: surplus shows, a lying gzip stays small
    if expected == 0 or len(data) != expected:
        found_size = f"more than {expected}" if len(data) > expected else str(len(data))
        raise FileFormatError(f"{path} promises shape {shape}, {expected} bytes, but holds {found_size}")
    return np.frombuffer(data, dtype=np.uint8).reshape(shape).copy()
