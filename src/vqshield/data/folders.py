"""Folders of image files: one sub-folder per class, or one flat folder with a table of labels.

In sub-folders the classes take turns, so that the first N images of a large set are not all alike; a table's
order stands as it is.
"""

import csv
import io
from pathlib import Path

import torch

from vqshield.core.errors import FileFormatError, InvalidInputError
from vqshield.core.files import read_text
from vqshield.data.base import MAX_CLASSES, check_label_range, first_file
from vqshield.data.homes import asset
from vqshield.data.pictures import FileSet
from vqshield.images.files import SUFFIXES

# Where a split may lie below the folder given; the folder itself serves as test set.
PLACES = {"train": ("train",), "test": ("test", "val", "validation", ".")}
CLASS_MAP = (
    "classes.txt"  # a line per class, in the order of the labels: the folder's name, then what it shows
)
TABLES = ("labels.csv", "LOC_val_solution.csv")  # for a flat folder: file, class; the second is Kaggle's

LAYOUTS = (
    "give one sub-folder per class (cat/1.png, dog/2.png), or a flat folder with labels.csv (a header, then "
    f"lines such as 1.png,cat). {CLASS_MAP} beside them may fix the order of the classes: one line each, the "
    "name used there, then, if you like, what it shows"
)


def read_folder(*, split: str, folder: Path, limit: int | None = None) -> FileSet:
    """Read a folder with one sub-folder of PNG or JPEG files per class, or with ``labels.csv`` beside them.

    ``classes.txt`` may set the order of the classes; without it they are sorted by name.
    """
    return _read("folder", split, folder, None).take(limit)


def pictures_below(folder: Path) -> FileSet:
    """All PNG and JPEG files in a folder and its sub-folders, by name, without labels: all have class 0."""
    files = sorted(file for file in folder.rglob("*") if _is_picture(file))
    if not files:
        raise InvalidInputError(f"{folder} has no image file; readable are {', '.join(SUFFIXES)}")
    labels = torch.zeros(len(files), dtype=torch.int64)
    return FileSet(name="folder", files=files, labels=labels, classes=("unlabelled",))


def read_imagenet(*, split: str, folder: Path, limit: int | None = None) -> FileSet:
    """Read ImageNet (ILSVRC-2012) from ``folder`` or from ``imagenet`` below it.

    The images lie in wnid sub-folders, or in one folder beside a CSV of their classes. Labels are the usual
    0..999 even where only some classes are there, unless ``classes.txt`` says otherwise.
    """
    below = folder / "imagenet"
    return _read("imagenet", split, below if below.is_dir() else folder, imagenet_classes()).take(limit)


def imagenet_classes() -> dict[str, str]:
    """The 1,000 classes in the order of their indices, WordNet id to name."""
    return _parse_map(asset("imagenet-classes.txt").decode(), "imagenet-classes.txt")


def _read(name: str, split: str, folder: Path, usual: dict[str, str] | None) -> FileSet:
    """Files by a table or by sub-folders; usual: the classes where no class map names them."""
    place = _place(split, folder)
    places = (place, folder)
    map_file = first_file(places, (CLASS_MAP,))
    known = usual if map_file is None else _parse_map(read_text(map_file), str(map_file))
    if table := first_file(places, TABLES):
        return _by_table(name, place, table, known)
    subfolders = {each.name: each.name for each in sorted(place.iterdir()) if each.is_dir()}
    return _by_subfolder(name, place, known or subfolders)


def _place(split: str, folder: Path) -> Path:
    if not folder.is_dir():
        raise InvalidInputError(f"{folder} is no folder; give the one that holds the images: {LAYOUTS}")
    for name in PLACES[split]:
        if (folder / name).is_dir():
            return folder / name
    raise InvalidInputError(f"{folder} has no sub-folder {' or '.join(PLACES[split])} for split {split!r}")


def _parse_map(text: str, path: str) -> dict[str, str]:
    lines = [
        line.split(maxsplit=1) for line in text.splitlines() if line.strip() and not line.startswith("#")
    ]
    known = {line[0]: line[-1].strip() for line in lines}
    if len(known) < len(lines) or not known:
        raise FileFormatError(
            f"{path} names {len(lines)} classes, {len(known)} of them different; name each once"
        )
    if len(known) > MAX_CLASSES:
        raise FileFormatError(f"{path} names {len(known)} classes; there can be at most {MAX_CLASSES}")
    return known


def _by_subfolder(name: str, place: Path, known: dict[str, str]) -> FileSet:
    """Files of sub-folders named as the classes; the j-th file of every class comes before any (j+1)-th."""
    present = {each.name for each in place.iterdir() if each.is_dir()}
    if strange := sorted(present - known.keys()):
        raise FileFormatError(
            f"{place} has a folder {strange[0]!r}, which is none of the {len(known)} classes; "
            f"name it in {CLASS_MAP}, which lists every class once, or take it away"
        )
    found = [
        (turn, label, file)
        for label, key in enumerate(known)
        if key in present
        for turn, file in enumerate(sorted(each for each in (place / key).iterdir() if _is_picture(each)))
    ]
    if not found:
        raise InvalidInputError(
            f"{place} has no image in a sub-folder named as its class; {LAYOUTS}. "
            f"Readable are {', '.join(SUFFIXES)}"
        )
    found.sort()
    return FileSet(
        name=name,
        files=[file for _, _, file in found],
        labels=torch.tensor([label for _, label, _ in found]),
        classes=tuple(known.values()),
    )


def _by_table(name: str, place: Path, table: Path, known: dict[str, str] | None) -> FileSet:
    """Files named in the first column of a CSV; the second begins with the class's key or index.

    Where no list of classes is known, they are those of the table: sorted, or 0, 1, … where all are numbers.
    """
    rows = _rows(table, place)
    keys = [row[1].split()[0] if len(row) > 1 and row[1].strip() else "" for _, row in rows]
    if known is None:
        known = _classes_of(keys, table)
    index = {key: number for number, key in enumerate(known)}
    files, labels = [], []
    for (line, row), key in zip(rows, keys, strict=True):
        label = index.get(key, int(key) if key.isdecimal() and len(key) < 10 else -1)
        if not 0 <= label < len(known):
            raise FileFormatError(
                f"{table}, line {line}: {key[:60]!r} is none of the {len(known)} classes, and no index of one"
            )
        if (file := _found(place, row[0], table)) is None:
            raise InvalidInputError(f"{table} names {row[0]!r}, but {place} has no such image")
        files.append(file)
        labels.append(label)
    if not files:
        raise InvalidInputError(f"{table} names no image; {LAYOUTS}")
    return FileSet(
        name=name,
        files=files,
        labels=torch.tensor(labels, dtype=torch.int64),
        classes=tuple(known.values()),
    )


def _rows(table: Path, place: Path) -> list[tuple[int, list[str]]]:
    """The lines with their numbers, without the header; a first line that names an image is no header."""
    rows = numbered_rows(table)
    return rows if rows and _found(place, rows[0][1][0], table) else rows[1:]


def numbered_rows(table: Path) -> list[tuple[int, list[str]]]:
    """The lines of a CSV file that are not empty, with their numbers."""
    reader = csv.reader(io.StringIO(read_text(table), newline=""))
    try:
        return [(reader.line_num, row) for row in reader if row]
    except csv.Error as error:
        raise FileFormatError(f"{table} is not a table of file and class: {error}") from error


def _classes_of(keys: list[str], table: Path) -> dict[str, str]:
    if all(key.isdecimal() and len(key) < 10 for key in keys):
        highest = max(map(int, keys), default=0)
        check_label_range(str(table), [highest], MAX_CLASSES)
        return {str(number): str(number) for number in range(highest + 1)}
    return {key: key for key in sorted(set(keys)) if key}


def _found(place: Path, name: str, table: Path) -> Path | None:
    """The file of a row, inside the folder whatever the row says; Kaggle leaves the ending out."""
    parts = Path(name).parts
    inside = not Path(name).is_absolute() and ".." not in parts
    last = parts[-1] if parts else ""
    places = [table.parent / Path(*parts[:-1])] if inside else []
    endings = ("", ".JPEG", ".jpg", ".png")
    return first_file((*places, place, place / "images"), [f"{last}{ending}" for ending in endings])


def _is_picture(file: Path) -> bool:
    return file.suffix.lower() in SUFFIXES and not file.name.startswith(".") and file.is_file()
