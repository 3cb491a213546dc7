"""Folders of image files: one sub-folder per class, or one flat folder with a table of labels.

In sub-folders the classes take turns, so that the first N images of a large set are not all alike; a table's
order is kept. ImageNet has either layout. The images of the NIPS-2017 adversarial competition (299x299,
ImageNet classes) have the competition's table (``images.csv`` or ``dev_dataset.csv`` with ImageId and
TrueLabel, counted from 1; PNG files next to it or in ``images/``), or ``labels.csv`` with file and
class_index from 0.
"""

import csv
import io
from collections.abc import Iterable
from pathlib import Path

import torch

from vqshield.core.errors import FileFormatError, InvalidInputError
from vqshield.core.files import read_text
from vqshield.data.base import MAX_CLASSES, FileSet, asset, check_label_range, first_file
from vqshield.images.files import SUFFIXES

# Where a split may lie below the folder given; the folder itself serves as test set.
PLACES = {"train": ("train",), "test": ("test", "val", "validation", ".")}
CLASS_MAP = "classes.txt"  # per class, in the order of the labels, a line: the folder's name, what it shows
TABLES = ("labels.csv", "LOC_val_solution.csv")  # for a flat folder: file, class; the second is Kaggle's
NIPS17_TABLES = ("labels.csv", "images.csv", "dev_dataset.csv")
# How such a table names its columns: file, label, what the labels start from, and the files' ending.
NIPS17_COLUMNS = (("file", "class_index", 0, ""), ("ImageId", "TrueLabel", 1, ".png"))
MOST_DIGITS = 9  # of a label

LAYOUTS = (
    "give one sub-folder per class (cat/1.png, dog/2.png), or a flat folder with labels.csv (a header, then "
    f"lines such as 1.png,cat). {CLASS_MAP} next to them may fix the order of the classes: one line each, "
    "the name used there, then, if you like, what it shows"
)


def read_folder(split: str, folder: Path, limit: int | None) -> FileSet:
    """Read a folder with one sub-folder of PNG or JPEG files per class, or with ``labels.csv`` next to them.

    ``classes.txt`` may set the order of the classes; without it they are sorted by name.
    """
    return _read("folder", split, folder, None).take(limit)


def pictures_below(folder: Path) -> FileSet:
    """All PNG and JPEG files in a folder and its sub-folders, by name, without labels: all have class 0."""
    files = _pictures(folder.rglob("*"))
    if not files:
        raise InvalidInputError(f"{folder} has no image file; readable are {', '.join(SUFFIXES)}")
    labels = torch.zeros(len(files), dtype=torch.int64)
    return FileSet(name="folder", files=files, labels=labels, classes=("unlabelled",))


def read_imagenet(split: str, folder: Path, limit: int | None) -> FileSet:
    """Read ImageNet (ILSVRC-2012) from ``folder`` or from ``imagenet`` below it.

    The images lie in wnid sub-folders, or in one folder with a CSV of their classes. Labels are the usual
    0..999 even where only some classes are there, unless ``classes.txt`` says otherwise.
    """
    below = folder / "imagenet"
    return _read("imagenet", split, below if below.is_dir() else folder, imagenet_classes()).take(limit)


def read_nips17(split: str, folder: Path, limit: int | None) -> FileSet:
    """Read the competition's images, a test split only, from ``folder`` or from ``nips17`` below it."""
    below = folder / "nips17"
    if (table := first_file((below, folder), NIPS17_TABLES)) is None:
        raise InvalidInputError(
            f"none of {', '.join(NIPS17_TABLES)} is in {folder} or in {below}; "
            "give the folder of the NIPS-2017 images"
        )
    (_, header), *rows = _rows(table) or [(1, [])]
    layouts = [columns for columns in NIPS17_COLUMNS if columns[0] in header and columns[1] in header]
    if not layouts:
        raise FileFormatError(
            f"{table} has columns {', '.join(header) or 'none'}; it needs file and class_index, "
            "or ImageId and TrueLabel"
        )
    file_column, label_column, first, ending = layouts[0]
    classes = tuple(imagenet_classes().values())
    files, labels = [], []
    for line, row in rows:
        cells = dict(zip(header, row, strict=False))
        label = _number(cells.get(label_column, ""))
        if not first <= label < len(classes) + first:
            raise FileFormatError(
                f"{table}, line {line}: {label_column}={cells.get(label_column, '')[:60]!r} is outside "
                f"{first}..{len(classes) - 1 + first}"
            )
        name = Path(cells.get(file_column, "")).name + ending
        if (file := first_file((table.parent / "images", table.parent), (name,))) is None:
            raise InvalidInputError(f"{table} names {name!r}, which is neither next to it nor in images/")
        files.append(file)
        labels.append(label - first)
    return FileSet(  # the competition cut the images already
        name="nips17", files=files, labels=torch.tensor(labels, dtype=torch.int64), classes=classes,
        cropped=True,
    ).take(limit)  # fmt: skip


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
    return _by_subfolder(name, place, known)


def _place(split: str, folder: Path) -> Path:
    if not folder.is_dir():
        raise InvalidInputError(f"{folder} is not a folder; give the one that holds the images: {LAYOUTS}")
    for name in PLACES[split]:
        if (folder / name).is_dir():
            return folder / name
    raise InvalidInputError(f"{folder} has no sub-folder {' or '.join(PLACES[split])} for split {split!r}")


def _parse_map(text: str, path: str) -> dict[str, str]:
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    known = {words[0]: words[-1].strip() for words in (line.split(maxsplit=1) for line in lines)}
    if len(known) < len(lines) or not known:
        raise FileFormatError(
            f"{path} names {len(lines)} classes, {len(known)} of them different; name each once"
        )
    if len(known) > MAX_CLASSES:
        raise FileFormatError(f"{path} names {len(known)} classes; there can be at most {MAX_CLASSES}")
    return known


def _by_subfolder(name: str, place: Path, known: dict[str, str] | None) -> FileSet:
    """Files of sub-folders named as the classes; the j-th file of every class comes before any (j+1)-th."""
    present = {path.name for path in place.iterdir() if path.is_dir()}
    known = known or {key: key for key in sorted(present)}
    if strange := sorted(present - known.keys()):
        raise FileFormatError(
            f"{place} has a folder {strange[0]!r}, which is none of the {len(known)} classes; "
            f"name it in {CLASS_MAP}, which lists every class once, or take it away"
        )
    turns = sorted(
        (turn, label, file)
        for label, key in enumerate(known)
        if key in present
        for turn, file in enumerate(_pictures((place / key).iterdir()))
    )
    if not turns:
        raise InvalidInputError(
            f"{place} has no image in a sub-folder named as its class; {LAYOUTS}. "
            f"Readable are {', '.join(SUFFIXES)}"
        )
    return FileSet(
        name=name,
        files=[file for _, _, file in turns],
        labels=torch.tensor([label for _, label, _ in turns]),
        classes=tuple(known.values()),
    )


def _by_table(name: str, place: Path, table: Path, known: dict[str, str] | None) -> FileSet:
    """Files named in the first column of a CSV; the second begins with the class's key or index.

    Where no list of classes is known, they are those of the table: sorted, or 0, 1, … where all are numbers.
    """
    rows = _rows(table)
    if not (rows and _file_of(place, rows[0][1][0], table)):  # a first line that names an image is data
        rows = rows[1:]
    keys = [row[1].split()[0] if len(row) > 1 and row[1].strip() else "" for _, row in rows]
    if known is None:
        known = _classes_of(keys, table)
    index = {key: number for number, key in enumerate(known)}
    files, labels = [], []
    for (line, row), key in zip(rows, keys, strict=True):
        label = index.get(key, _number(key))
        if not 0 <= label < len(known):
            raise FileFormatError(
                f"{table}, line {line}: {key[:60]!r} is none of the {len(known)} classes, and no index of one"
            )
        if (file := _file_of(place, row[0], table)) is None:
            raise InvalidInputError(f"{table} names {row[0]!r}, but {place} has no such image")
        files.append(file)
        labels.append(label)
    if not files:
        raise InvalidInputError(f"{table} names no image; {LAYOUTS}")
    return FileSet(
        name=name, files=files, labels=torch.tensor(labels, dtype=torch.int64), classes=tuple(known.values())
    )


def _rows(table: Path) -> list[tuple[int, list[str]]]:
    """The lines of a CSV file that are not empty, with their numbers."""
    reader = csv.reader(io.StringIO(read_text(table), newline=""))
    try:
        return [(reader.line_num, row) for row in reader if row]
    except csv.Error as error:
        raise FileFormatError(f"{table} is not a table of file and class: {error}") from error


def _classes_of(keys: list[str], table: Path) -> dict[str, str]:
    if all(_number(key) >= 0 for key in keys):
        highest = max(map(int, keys), default=0)
        check_label_range(str(table), [highest], MAX_CLASSES)
        return {str(number): str(number) for number in range(highest + 1)}
    return {key: key for key in sorted(set(keys)) if key}


def _number(text: str) -> int:
    """The label that a cell of a table holds; -1 where it holds none."""
    return int(text) if text.isdecimal() and len(text) <= MOST_DIGITS else -1


def _file_of(place: Path, name: str, table: Path) -> Path | None:
    """The file of a row, inside the folder whatever the row says; Kaggle leaves the ending out."""
    parts = Path(name).parts
    inside = not Path(name).is_absolute() and ".." not in parts
    last = parts[-1] if parts else ""
    places = [table.parent / Path(*parts[:-1])] if inside else []
    endings = ("", ".JPEG", ".jpg", ".png")
    return first_file((*places, place, place / "images"), [f"{last}{ending}" for ending in endings])


def _pictures(files: Iterable[Path]) -> list[Path]:
    return sorted(
        file
        for file in files
        if file.suffix.lower() in SUFFIXES and not file.name.startswith(".") and file.is_file()
    )
