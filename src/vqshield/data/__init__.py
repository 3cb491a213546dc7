"""Data sets: one reader per layout, found by name. Readers never download, and nothing is unpickled."""

from collections.abc import Callable
from importlib import import_module
from pathlib import Path

from vqshield.core.checks import one_of, whole
from vqshield.core.errors import InvalidInputError
from vqshield.data.base import SAMPLE_NAME, SPLITS, FileSet, ImageSet
from vqshield.data.bundled import sample, sample_card
from vqshield.data.downloads import cache_folder, download, list_downloadable

Reader = Callable[[str, Path, int | None], ImageSet]
"""Reads a split, "train" or "test", from a folder: its first images, or all; no more than these are read."""

# A new data set: a Reader called read_NAME in a module of this folder, and one line here.
_READERS = {
    "cifar10": "cifar",
    "cifar100": "cifar",
    "mnist": "mnist",
    "imagenet": "folders",
    "nips17": "folders",
    "folder": "folders",
    "npz": "arrays",
}
"""The module of each reader, imported when it is used."""
_LAYOUTS = ("folder", "npz")  # of anyone's images, so the cache has no place for them
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
    read: Reader = getattr(import_module(f"{__name__}.{_READERS[name]}"), f"read_{name}")
    if folder is not None:
        return read(split, Path(folder), limit)
    if name in _LAYOUTS:
        raise InvalidInputError(f"data set {name!r} needs its folder (--data-dir), folder=None was given")
    try:
        return read(split, cache_folder(), limit)
    except InvalidInputError as error:
        way = f", or first: vqshield download {name}" if name in list_downloadable() else ""
        raise InvalidInputError(
            f"data set {name!r} needs the folder that holds its files (--data-dir){way}. "
            f"None was given, and in the cache folder {error}"
        ) from error


__all__ = [
    "SAMPLE_NAME",
    "SPLITS",
    "FileSet",
    "ImageSet",
    "cache_folder",
    "download",
    "list_datasets",
    "list_downloadable",
    "load",
    "sample",
    "sample_card",
]
