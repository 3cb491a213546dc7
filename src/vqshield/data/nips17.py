"""The images of the NIPS-2017 adversarial competition: 299x299, ImageNet classes, a CSV beside them.

Two layouts are read: the competition's (``images.csv`` or ``dev_dataset.csv`` with ImageId and TrueLabel,
counted from 1; PNG files in ``images/`` or beside it) and ``labels.csv`` with file and class_index from 0.
"""

import csv
import io
from pathlib import Path

import torch

from vqshield.core.errors import FileFormatError, InvalidInputError
from vqshield.core.files import file_exists, read_text
from vqshield.data.folders import imagenet_classes
from vqshield.data.pictures import FileSet

TABLES = ("labels.csv", "images.csv", "dev_dataset.csv")
SUBFOLDER = "nips17"
# How a table names its columns: file, label, what the labels start from, and the files' ending.
COLUMNS = (("file", "class_index", 0, ""), ("ImageId", "TrueLabel", 1, ".png"))


def read_nips17(*, split: str, folder: Path, limit: int | None = None) -> FileSet:
    """Read the competition's images, a test split only, from ``folder`` or from ``nips17`` below it."""
    if split != "test":
        raise InvalidInputError(f"'nips17' has no split {split!r}; it has 'test' only")
    table = _table(folder)
    reader = csv.DictReader(io.StringIO(read_text(table), newline=""))
    try:
        rows, header = list(reader), reader.fieldnames or ()
    except csv.Error as error:
        raise FileFormatError(f"{table} is not a table of file and class: {error}") from error
    fitting = [columns for columns in COLUMNS if columns[0] in header and columns[1] in header]
    if not fitting:
        raise FileFormatError(
            f"{table} has columns {', '.join(header) or 'none'}; it needs file and class_index, "
            "or ImageId and TrueLabel"
        )
    file_column, label_column, first, ending = fitting[0]
    classes = tuple(imagenet_classes().values())
    files, labels = [], []
    for number, row in enumerate(rows, start=2):
        text = row[label_column] or ""
        if not text.isdecimal() or len(text) > 9 or not first <= int(text) < len(classes) + first:
            raise FileFormatError(
                f"{table}, line {number}: {label_column}={text[:60]!r} is outside "
                f"{first}..{len(classes) - 1 + first}"
            )
        files.append(_file(table, Path(row[file_column] or "").name + ending))
        labels.append(int(text) - first)
    return FileSet(
        name="nips17",
        files=files,
        labels=torch.tensor(labels, dtype=torch.int64),
        classes=classes,
        cropped=True,  # the competition cut them already
    ).take(limit)


def _table(folder: Path) -> Path:
    for place in (folder / SUBFOLDER, folder):
        for name in TABLES:
            if (place / name).is_file():
                return place / name
    raise InvalidInputError(
        f"none of {', '.join(TABLES)} is in {folder} or in {folder / SUBFOLDER}; "
        "give the folder of the NIPS-2017 images"
    )


def _file(table: Path, name: str) -> Path:
    for place in (table.parent / "images", table.parent):
        if file_exists(place / name):
            return place / name
    raise InvalidInputError(f"{table} names {name!r}, which is neither beside it nor in images/")
