"""The images of the NIPS-2017 adversarial competition: 299x299, ImageNet classes, a CSV beside them.

Two layouts are read: the competition's (``images.csv`` or ``dev_dataset.csv`` with ImageId and TrueLabel,
counted from 1; PNG files in ``images/`` or beside it) and ``labels.csv`` with file and class_index from 0.
"""

from pathlib import Path

import torch

from vqshield.core.errors import FileFormatError, InvalidInputError
from vqshield.data.base import first_file
from vqshield.data.folders import imagenet_classes, numbered_rows
from vqshield.data.pictures import FileSet

TABLES = ("labels.csv", "images.csv", "dev_dataset.csv")
SUBFOLDER = "nips17"
# How a table names its columns: file, label, what the labels start from, and the files' ending.
COLUMNS = (("file", "class_index", 0, ""), ("ImageId", "TrueLabel", 1, ".png"))


def read_nips17(*, split: str, folder: Path, limit: int | None = None) -> FileSet:
    """Read the competition's images, a test split only, from ``folder`` or from ``nips17`` below it."""
    places = (folder / SUBFOLDER, folder)
    if (table := first_file(places, TABLES)) is None:
        raise InvalidInputError(
            f"none of {', '.join(TABLES)} is in {folder} or in {folder / SUBFOLDER}; "
            "give the folder of the NIPS-2017 images"
        )
    (_, header), *rows = numbered_rows(table) or [(1, [])]
    fitting = [columns for columns in COLUMNS if columns[0] in header and columns[1] in header]
    if not fitting:
        raise FileFormatError(
            f"{table} has columns {', '.join(header) or 'none'}; it needs file and class_index, "
            "or ImageId and TrueLabel"
        )
    file_column, label_column, first, ending = fitting[0]
    classes = tuple(imagenet_classes().values())
    files, labels = [], []
    for line, row in rows:
        named = dict(zip(header, row, strict=False))
        text = named.get(label_column, "")
        if not text.isdecimal() or len(text) > 9 or not first <= int(text) < len(classes) + first:
            raise FileFormatError(
                f"{table}, line {line}: {label_column}={text[:60]!r} is outside "
                f"{first}..{len(classes) - 1 + first}"
            )
        name = Path(named.get(file_column, "")).name + ending
        file = first_file((table.parent / "images", table.parent), (name,))
        if file is None:
            raise InvalidInputError(f"{table} names {name!r}, which is neither beside it nor in images/")
        files.append(file)
        labels.append(int(text) - first)
    return FileSet(
        name="nips17",
        files=files,
        labels=torch.tensor(labels, dtype=torch.int64),
        classes=classes,
        cropped=True,  # the competition cut them already
    ).take(limit)
