"""Folders of image files: one subfolder a class, or ImageNet's validation images with their class map.

Classes take turns in the order of the files, so that the first N images of a large set are not all alike.
"""

import csv
from importlib import resources
from pathlib import Path

import torch

from vqshield.checks import one_of
from vqshield.data.base import SPLITS
from vqshield.data.pictures import SUFFIXES, FileSet
from vqshield.errors import FileFormatError, InvalidInputError

# Where a split may lie below the folder given; the folder itself serves as test set.
PLACES = {"train": ("train",), "test": ("test", "val", "validation", ".")}
CLASS_MAP = "classes.txt"  # one line a class, in the order of the labels: folder's name, then what it shows
ANSWERS = (
    "labels.csv",
    "LOC_val_solution.csv",
)  # for images in one folder: file, class; the second is Kaggle's


def read_folder(*, split: str, folder: Path) -> FileSet:
    """Read a folder with one subfolder of PNG or JPEG files a class; ``classes.txt`` may set their order."""
    place = _place(split, folder)
    known = _class_map(place, folder) or {
        each.name: each.name for each in sorted(place.iterdir()) if each.is_dir()
    }
    return _by_subfolder("folder", place, known)


def read_imagenet(*, split: str, folder: Path) -> FileSet:
    """Read ImageNet (ILSVRC-2012) from ``folder`` or from ``imagenet`` below it.

    The images lie in wnid subfolders, or in one folder beside a CSV of their classes. Labels are the usual
    0..999 even where only some classes are there, unless ``classes.txt`` says otherwise.
    """
    if (folder / "imagenet").is_dir():
        folder = folder / "imagenet"
    place = _place(split, folder)
    known = _class_map(place, folder) or imagenet_classes()
    for above in (place, folder):
        for name in ANSWERS:
            if (above / name).is_file():
                return _by_answers("imagenet", place, above / name, known)
    return _by_subfolder("imagenet", place, known)


def imagenet_classes() -> dict[str, str]:
    """The 1,000 classes in the order of their indices, WordNet id to name."""
    asset = resources.files("vqshield.data") / "assets" / "imagenet-classes.txt"
    return _parse_map(asset.read_text("utf-8"), "imagenet-classes.txt")


def _place(split: str, folder: Path) -> Path:
    one_of("split", split, SPLITS)
    if not folder.is_dir():
        raise InvalidInputError(f"{folder} is no folder; give the one that holds the images")
    for name in PLACES[split]:
        if (folder / name).is_dir():
            return folder / name
    raise InvalidInputError(f"{folder} has no subfolder {' or '.join(PLACES[split])} for split {split!r}")


def _class_map(*places: Path) -> dict[str, str] | None:
    for place in places:
        if (place / CLASS_MAP).is_file():
            return _parse_map((place / CLASS_MAP).read_text("utf-8"), str(place / CLASS_MAP))
    return None


def _parse_map(text: str, path: str) -> dict[str, str]:
    lines = [
        line.split(maxsplit=1) for line in text.splitlines() if line.strip() and not line.startswith("#")
    ]
    known = {line[0]: line[-1].strip() for line in lines}
    if len(known) < len(lines) or not known:
        raise FileFormatError(
            f"{path} names {len(lines)} classes, {len(known)} of them different; name each once"
        )
    return known


def _by_subfolder(name: str, place: Path, known: dict[str, str]) -> FileSet:
    """Files of subfolders named as the classes; the j-th file of every class comes before any (j+1)-th."""
    present = {each.name for each in place.iterdir() if each.is_dir()}
    if strange := sorted(present - known.keys()):
        raise FileFormatError(
            f"{place} has a folder {strange[0]!r}, which is none of the {len(known)} classes"
        )
    found = [
        (turn, label, file)
        for label, key in enumerate(known)
        if key in present
        for turn, file in enumerate(sorted(each for each in (place / key).iterdir() if _is_picture(each)))
    ]
    if not found:
        raise InvalidInputError(
            f"{place} has no image in a subfolder named as its class; readable are {', '.join(SUFFIXES)}"
        )
    found.sort()
    return FileSet(
        name=name,
        files=[file for _, _, file in found],
        labels=torch.tensor([label for _, label, _ in found]),
        classes=tuple(known.values()),
    )


def _by_answers(name: str, place: Path, answers: Path, known: dict[str, str]) -> FileSet:
    """Files named in the first column of a CSV; the second begins with the class's key or index."""
    index = {key: number for number, key in enumerate(known)}
    with answers.open(newline="", encoding="utf-8") as opened:
        rows = [row for row in csv.reader(opened) if row][1:]
    files, labels = [], []
    for number, row in enumerate(rows, start=2):
        key = row[1].split()[0] if len(row) > 1 and row[1].strip() else ""
        label = index.get(key, int(key) if key.isdecimal() else -1)
        if not 0 <= label < len(known):
            raise FileFormatError(f"{answers}, line {number}: {key!r} is none of the {len(known)} classes")
        files.append(_named(place, row[0], answers))
        labels.append(label)
    return FileSet(
        name=name,
        files=files,
        labels=torch.tensor(labels, dtype=torch.int64),
        classes=tuple(known.values()),
    )


def _named(place: Path, name: str, answers: Path) -> Path:
    """The file of a CSV's row, inside the folder whatever the row says; Kaggle leaves the ending out."""
    for ending in ("", ".JPEG", ".jpg", ".png"):
        if (place / (Path(name).name + ending)).is_file():
            return place / (Path(name).name + ending)
    raise InvalidInputError(f"{answers} names {name!r}, but {place} has no such image")


def _is_picture(file: Path) -> bool:
    return file.suffix.lower() in SUFFIXES and not file.name.startswith(".") and file.is_file()
