"""Data sets: one reader per file, found by name. No reader downloads or unpickles anything."""

from collections.abc import Callable
from pathlib import Path

from vqshield.checks import one_of
from vqshield.data.base import SPLITS, ImageSet
from vqshield.data.cifar import cifar10, cifar100
from vqshield.data.mnist import mnist
from vqshield.data.sample import NAME as SAMPLE_NAME
from vqshield.data.sample import sample, sample_card
from vqshield.errors import InvalidInputError

__all__ = ["SAMPLE_NAME", "SPLITS", "ImageSet", "datasets", "load", "sample", "sample_card"]

# A new data set: one reader file, one line here.
_READERS: dict[str, Callable[..., ImageSet]] = {
    "cifar10": cifar10,
    "cifar100": cifar100,
    "mnist": mnist,
}


def datasets() -> tuple[str, ...]:
    """Return the names that ``load`` knows."""
    return (*_READERS, SAMPLE_NAME)


def load(name: str, split: str, folder: str | Path | None = None) -> ImageSet:
    """Read one split of a data set from a folder; the bundled sample needs none."""
    one_of("name", name, datasets())
    one_of("split", split, SPLITS)
    if name == SAMPLE_NAME:
        if split != "test":
            raise InvalidInputError(f"{SAMPLE_NAME!r} has no split {split!r}; it has 'test' only")
        return sample()
    if folder is None:
        raise InvalidInputError(
            f"data set {name!r} needs the folder that holds its files, folder=None was given"
        )
    return _READERS[name](split=split, folder=Path(folder))
