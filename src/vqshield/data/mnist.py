"""MNIST in its official idx layout, plain or gzipped."""

import gzip
import math
import zlib
from pathlib import Path
from typing import IO

import numpy as np
import numpy.typing as npt
import torch

from vqshield.core.errors import FileFormatError, InvalidInputError
from vqshield.core.files import check_size
from vqshield.data.base import ImageSet, check_label_range, first_file

CLASSES = tuple(str(digit) for digit in range(10))
PREFIXES = {"train": "train", "test": "t10k"}
SUBFOLDER = Path("MNIST", "raw")
BYTES_TYPE = 8  # idx's code for unsigned bytes
BLOCK = 1 << 20

Bytes = npt.NDArray[np.uint8]


def read_mnist(split: str, folder: Path, limit: int | None) -> ImageSet:
    """Read MNIST, or its first ``limit`` images, from ``folder`` or from ``MNIST/raw`` below it."""
    images, image_count = _read(folder, f"{PREFIXES[split]}-images-idx3-ubyte", 3, limit)
    labels, label_count = _read(folder, f"{PREFIXES[split]}-labels-idx1-ubyte", 1, limit)
    if image_count != label_count:
        raise FileFormatError(f"mnist {split} in {folder} has {image_count} images but {label_count} labels")
    check_label_range(f"mnist {split} in {folder}", [int(labels.max())], len(CLASSES))
    return ImageSet(
        name="mnist",
        images=torch.from_numpy(images[:, None]),
        labels=torch.from_numpy(labels.astype(np.int64)),
        classes=CLASSES,
    )


def _read(folder: Path, name: str, dimensions: int, limit: int | None) -> tuple[Bytes, int]:
    path = first_file((folder / SUBFOLDER, folder), (name, f"{name}.gz"))
    if path is None:
        raise InvalidInputError(f"{name}[.gz] is neither in {folder} nor in {folder / SUBFOLDER}")
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            return _idx(file, path, dimensions, limit)
    except (OSError, EOFError, zlib.error) as error:
        raise FileFormatError(f"{path} cannot be read: {error}") from error


def _idx(
    file: IO[bytes] | gzip.GzipFile, path: Path, dimensions: int, limit: int | None
) -> tuple[Bytes, int]:
    """The first ``limit`` entries of an idx file, and how many it promises.

    The layout: 0, 0, type, number of dimensions, each dimension as big-endian int32, data.
    """
    magic = bytes([0, 0, BYTES_TYPE, dimensions])
    start = file.read(4)
    if start != magic:
        raise FileFormatError(
            f"{path} starts with {start.hex()!r}; an idx file of this kind starts with {magic.hex()!r}"
        )
    header = file.read(4 * dimensions)
    if len(header) < 4 * dimensions:
        raise FileFormatError(f"{path} ends inside its header")
    shape = tuple(int(length) for length in np.frombuffer(header, dtype=">u4"))
    promised = math.prod(shape)
    if promised == 0:
        raise FileFormatError(f"{path} promises shape {shape}, 0 bytes; it should hold at least one image")
    count = shape[0] if limit is None else min(limit, shape[0])
    wanted = math.prod(shape[1:], start=count)
    check_size(path, wanted, f"shape {(count, *shape[1:])}")
    most = wanted + (count == shape[0])  # one more than promised: surplus shows
    data = bytearray()  # memory is taken for bytes that are there, not for those that are promised
    while block := file.read(min(BLOCK, most - len(data))):
        data += block
    if len(data) != wanted:
        held = f"more than {promised}" if len(data) > wanted else str(len(data))
        raise FileFormatError(f"{path} promises shape {shape}, {promised} bytes, but holds {held}")
    return np.frombuffer(data, dtype=np.uint8).reshape(count, *shape[1:]), shape[0]
