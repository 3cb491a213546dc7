#!/usr/bin/env python3
"""Write the bundled sample (PNG sheet and JSON card) from the CIFAR-10 test set.

    python tools/make_sample.py CIFAR_FOLDER [--out FOLDER]

The same test set gives the same pixels, labels and card; only the PNG's compressed bytes may
differ between Pillow versions, which is why the card sums the decoded pixels.
"""

import argparse
import hashlib
import json
from pathlib import Path

import numpy as np
from PIL import Image

from vqshield.data import load

PER_CLASS = 50
COLUMNS = 25
OUT = Path(__file__).resolve().parents[1] / "src" / "vqshield" / "data" / "assets"
SOURCE = (
    "CIFAR-10 test set, A. Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009, "
    "https://www.cs.toronto.edu/~kriz/cifar.html"
)
LICENCE_NOTE = "The authors state no licence and ask that the report be cited."


def main() -> None:
    """Read the arguments and write both files."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folder", type=Path, help="folder with CIFAR-10's binary test_batch.bin")
    parser.add_argument("--out", type=Path, default=OUT, help="where the two files go")
    arguments = parser.parse_args()
    write(arguments.folder, arguments.out)


def write(folder: Path, out: Path) -> None:
    """Write the sheet and the card: the first images of each class in test-set order, class after class."""
    test = load("cifar10", "test", folder)
    labels = test.labels.numpy()
    indices = np.concatenate([np.flatnonzero(labels == c)[:PER_CLASS] for c in range(len(test.classes))])
    tiles = test.images.numpy()[indices].transpose(0, 2, 3, 1)
    rows = len(tiles) // COLUMNS
    sheet = tiles.reshape(rows, COLUMNS, 32, 32, 3).swapaxes(1, 2).reshape(rows * 32, COLUMNS * 32, 3)

    out.mkdir(parents=True, exist_ok=True)
    Image.fromarray(sheet).save(out / "cifar10-sample.png", optimize=True)
    card = {
        "source": SOURCE,
        "licence_note": LICENCE_NOTE,
        "layout": f"{COLUMNS} columns x {rows} rows of 32x32 RGB tiles, row by row, class after class",
        "pixels_sha256": hashlib.sha256(sheet.tobytes()).hexdigest(),
        "classes": list(test.classes),
        "labels": labels[indices].tolist(),
        "indices": indices.tolist(),
    }
    (out / "cifar10-sample.json").write_text(json.dumps(card) + "\n", encoding="utf-8")
    print(f"{len(tiles)} images in cifar10-sample.png")


if __name__ == "__main__":
    main()
