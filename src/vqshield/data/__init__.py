"""Data sets: one reader per layout, found by name. Readers never download, and nothing is unpickled."""

from pathlib import Path

from vqshield.core.checks import one_of, whole
from vqshield.core.errors import InvalidInputError
from vqshield.data.arrays import from_dataset, read_npz
from vqshield.data.base import SPLITS, ImageSet, Reader
from vqshield.data.bundled import NAME as SAMPLE_NAME
from vqshield.data.bundled import sample, sample_card
from vqshield.data.cache import cache_folder
from vqshield.data.cifar import read_cifar10, read_cifar100
from vqshield.data.fetching import download, list_downloadable
from vqshield.data.folders import read_folder, read_imagenet
from vqshield.data.mnist import read_mnist
from vqshield.data.nips17 import read_nips17
from vqshield.data.pictures import FileSet

__all__ = [
    "SAMPLE_NAME",
    "SPLITS",
    "FileSet",
    "ImageSet",
    "cache_folder",
    "download",
    "from_dataset",
    "list_datasets",
    "list_downloadable",
    "load",
    "sample",
    "sample_card",
]

# A new data set: one reader file, one line here.
_READERS: dict[str, Reader] = {
    "cifar10": read_cifar10,
    "cifar100": read_cifar100,
    "mnist": read_mnist,
    "imagenet": read_imagenet,
    "nips17": read_nips17,
    "folder": read_folder,
    "npz": read_npz,
}
_ANYONES = ("folder", "npz")  # layouts rather than data sets, so the cache has no place for them
_TEST_ONLY = ("nips17", SAMPLE_NAME)


def list_datasets() -> tuple[str, ...]:
    """The names that ``load`` knows."""
    return (*_READERS, SAMPLE_NAME)


def load(name: str, split: str, folder: str | Path | None = None, *, limit: int | None = None) -> ImageSet:
    """Read one split of a data set.

    Args:
        name: one of ``list_datasets()``.
        split: "train" or "test".
        folder: where its files are; without it, the cache folder. The bundled sample has none.
        limit: how many images, the first ones; no more than these are read. None: all.
    """
    one_of("name", name, list_datasets())
    one_of("split", split, SPLITS)
    if limit is not None:
        whole("limit", limit, least=1)
    if name in _TEST_ONLY and split != "test":
        raise InvalidInputError(f"{name!r} has no split {split!r}; it has 'test' only")
    if name == SAMPLE_NAME:
        if folder is not None:
            raise InvalidInputError(
                f"folder {str(folder)!r} (--data-dir) is given for {SAMPLE_NAME!r}, which is bundled and has "
                f"none; name the data set in it (--data), one of {', '.join(_READERS)}, or leave it out"
            )
        return sample(limit)
    if folder is not None:
        return _READERS[name](split=split, folder=Path(folder), limit=limit)
    if name in _ANYONES:
        raise InvalidInputError(f"data set {name!r} needs its folder (--data-dir), folder=None was given")
    try:
        return _READERS[name](split=split, folder=cache_folder(), limit=limit)
    except InvalidInputError as error:
        way = f", or first: vqshield download {name}" if name in list_downloadable() else ""
        raise InvalidInputError(
            f"data set {name!r} needs the folder that holds its files (--data-dir){way}. "
            f"None was given, and in the cache folder {error}"
        ) from error
