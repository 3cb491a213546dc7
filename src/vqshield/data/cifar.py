"""CIFAR-10 and CIFAR-100 in their official binary layout.

A record is one label byte (CIFAR-10) or a coarse and a fine label byte (CIFAR-100),
then 3072 pixel bytes: 32x32 red, then green, then blue.
"""

from pathlib import Path, PurePosixPath

import numpy as np
import numpy.typing as npt
import torch

from vqshield.core.errors import FileFormatError, InvalidInputError
from vqshield.data.base import ImageSet, asset
from vqshield.data.downloads import HOMES

Bytes = npt.NDArray[np.uint8]

PAGE = "https://www.cs.toronto.edu/~kriz/cifar.html"
PIXELS = 3 * 32 * 32
MOST_RECORDS = 60_000  # in one file: a whole CIFAR data set


def read_cifar10(split: str, folder: Path, limit: int | None) -> ImageSet:
    """Read CIFAR-10 from ``folder`` or from its usual place below it."""
    classes = "airplane automobile bird cat deer dog frog horse ship truck"
    return _read("cifar10", split, folder, limit, label_limits=(10,), classes=tuple(classes.split()))


def read_cifar100(split: str, folder: Path, limit: int | None) -> ImageSet:
    """Read CIFAR-100 with its fine labels, in their official order, which is alphabetical."""
    classes = tuple(asset("cifar100-classes.txt").decode().split())
    return _read("cifar100", split, folder, limit, label_limits=(20, 100), classes=classes)


def _read(
    name: str,
    split: str,
    folder: Path,
    limit: int | None,
    *,
    label_limits: tuple[int, ...],
    classes: tuple[str, ...],
) -> ImageSet:
    """label_limits: one exclusive limit per label byte; the last byte is the label."""
    (home,) = HOMES[name]
    paths = [PurePosixPath(member) for member in home.members]
    files = [path.name for path in paths if path.name.startswith("test") == (split == "test")]
    place = _place(name, folder, paths[0].parent.name, files)
    parts, left = [], limit
    for file in files:
        if left is None or left > 0:
            parts.append(_records(place / file, label_limits, left))
            left = None if left is None else left - len(parts[-1][0])
    labels, pixels = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    return ImageSet(
        name=name,
        images=torch.from_numpy(pixels.reshape(-1, 3, 32, 32)),
        labels=torch.from_numpy(labels.astype(np.int64)),
        classes=classes,
    )


def _place(name: str, folder: Path, subfolder: str, files: list[str]) -> Path:
    """The folder that holds all the files; an error names the first absent one."""
    absent = files
    for place in (folder / subfolder, folder):
        missing = [file for file in files if not (place / file).is_file()]
        if not missing:
            return place
        absent = min(absent, missing, key=len)
    raise InvalidInputError(
        f"{absent[0]} is neither in {folder} nor in {folder / subfolder}; "
        f"unpack the binary version of {name} from {PAGE} there"
    )


def _records(path: Path, label_limits: tuple[int, ...], limit: int | None) -> tuple[Bytes, Bytes]:
    """The labels (n,) and pixels (n, 3072) of one file, or of its first ``limit`` records."""
    size = len(label_limits) + PIXELS
    length = path.stat().st_size
    count = length // size
    if length == 0 or length % size:
        raise FileFormatError(
            f"{path} has {length} bytes; expected a positive multiple of {size}, the size of one record"
        )
    if count > MOST_RECORDS:
        raise FileFormatError(f"{path} has {count} records; a CIFAR file has at most {MOST_RECORDS}")
    wanted = count if limit is None else min(limit, count)
    data = np.fromfile(path, dtype=np.uint8, count=wanted * size)
    rows = data[: data.size // size * size].reshape(-1, size)
    if len(rows) < wanted:
        raise FileFormatError(f"{path} ended after {len(rows)} of {wanted} records while it was read")
    for byte, below in enumerate(label_limits):
        wrong = np.flatnonzero(rows[:, byte] >= below)
        if wrong.size:
            value, record = int(rows[wrong[0], byte]), int(wrong[0])
            raise FileFormatError(f"{path}: label {value} of record {record} is outside 0..{below - 1}")
    return rows[:, len(label_limits) - 1], np.ascontiguousarray(rows[:, len(label_limits) :])
