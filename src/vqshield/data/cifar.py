"""CIFAR-10 and CIFAR-100 in their official binary layout.

A record is one label byte (CIFAR-10) or a coarse and a fine label byte (CIFAR-100),
then 3072 pixel bytes: 32x32 red, then green, then blue.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from vqshield.core.checks import one_of
from vqshield.core.errors import FileFormatError, InvalidInputError
from vqshield.data.base import SPLITS, ImageSet

Bytes = npt.NDArray[np.uint8]

HOME = "https://www.cs.toronto.edu/~kriz/cifar.html"
PIXELS = 3 * 32 * 32
MOST_RECORDS = 60_000  # in one file: a whole CIFAR data set

CIFAR10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
# The official order of the fine labels, which is alphabetical.
_FINE_LABELS = """
    apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel
    can castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur
    dolphin elephant flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion
    lizard lobster man maple_tree motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree
    pear pickup_truck pine_tree plain plate poppy porcupine possum rabbit raccoon ray road rocket rose sea
    seal shark shrew skunk skyscraper snail snake spider squirrel streetcar sunflower sweet_pepper table
    tank telephone television tiger tractor train trout tulip turtle wardrobe whale willow_tree wolf woman
    worm
"""
CIFAR100_CLASSES = tuple(_FINE_LABELS.split())


@dataclass(frozen=True)
class Layout:
    """Where one CIFAR data set keeps its records and what its label bytes may be."""

    name: str
    subfolder: str
    files: dict[str, tuple[str, ...]]
    label_limits: tuple[int, ...]  # one exclusive limit per label byte; the last byte is the label
    classes: tuple[str, ...]


CIFAR10 = Layout(
    name="cifar10",
    subfolder="cifar-10-batches-bin",
    files={"train": tuple(f"data_batch_{i}.bin" for i in range(1, 6)), "test": ("test_batch.bin",)},
    label_limits=(10,),
    classes=CIFAR10_CLASSES,
)
CIFAR100 = Layout(
    name="cifar100",
    subfolder="cifar-100-binary",
    files={"train": ("train.bin",), "test": ("test.bin",)},
    label_limits=(20, 100),
    classes=CIFAR100_CLASSES,
)


def read_cifar10(*, split: str, folder: Path, limit: int | None = None) -> ImageSet:
    """Read CIFAR-10, or its first ``limit`` images, from ``folder`` or ``cifar-10-batches-bin`` below it."""
    return _read(CIFAR10, split, folder, limit)


def read_cifar100(*, split: str, folder: Path, limit: int | None = None) -> ImageSet:
    """Read CIFAR-100 (fine labels) likewise, from ``folder`` or ``cifar-100-binary`` below it."""
    return _read(CIFAR100, split, folder, limit)


def _read(layout: Layout, split: str, folder: Path, limit: int | None) -> ImageSet:
    one_of("split", split, SPLITS)
    files = layout.files[split]
    home = _find(layout, folder, files)
    parts, left = [], limit
    for file in files:
        if left is None or left > 0:
            parts.append(_records(home / file, layout.label_limits, left))
            left = None if left is None else left - len(parts[-1][0])
    labels = np.concatenate([labels for labels, _ in parts])
    pixels = np.concatenate([pixels for _, pixels in parts])
    return ImageSet(
        name=layout.name,
        images=torch.from_numpy(pixels.reshape(-1, 3, 32, 32)),
        labels=torch.from_numpy(labels.astype(np.int64)),
        classes=layout.classes,
    )


def _find(layout: Layout, folder: Path, files: Sequence[str]) -> Path:
    """The folder that holds all the files; an error names the first absent one."""
    places = (folder / layout.subfolder, folder)
    for place in places:
        if all((place / file).is_file() for file in files):
            return place
    partial = next((place for place in places if any((place / file).is_file() for file in files)), folder)
    absent = next(file for file in files if not (partial / file).is_file())
    raise InvalidInputError(
        f"{absent} is neither in {folder} nor in {folder / layout.subfolder}; "
        f"unpack the binary version of {layout.name} from {HOME} there"
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
