"""The bundled sample: 500 CIFAR-10 test images, 50 a class, in one lossless PNG sheet.

Made by ``tools/make_sample.py``; the JSON file next to the sheet has the source and the licence note.
"""

import hashlib
import io
from typing import Any

import numpy as np
import torch

from vqshield.core.errors import FileFormatError
from vqshield.core.files import parse_json
from vqshield.core.serialization import Json
from vqshield.data.base import SAMPLE_NAME, ImageSet, asset
from vqshield.images.files import pillow

TILE = 32


def sample(limit: int | None = None) -> ImageSet:
    """The bundled images, all 500 or the first ``limit``.

    The classes take turns, so that every multiple of ten is balanced: the first 100 are 10 a class.
    """
    card: dict[str, Any] = sample_card()
    tiles = _tiles(card)
    # The sheet holds class after class; reading position j of every class in turn interleaves them.
    turns = np.arange(len(tiles)).reshape(len(card["classes"]), -1).T.ravel()
    images = ImageSet(
        name=SAMPLE_NAME,
        images=torch.from_numpy(np.ascontiguousarray(tiles[turns].transpose(0, 3, 1, 2))),
        labels=torch.tensor(card["labels"], dtype=torch.int64)[torch.from_numpy(turns)],
        classes=tuple(card["classes"]),
    )
    return images.take(limit)


def sample_card() -> dict[str, Json]:
    """What is known of the sample: labels, test-set indices, source, licence note."""
    card: dict[str, Json] = parse_json(asset(f"{SAMPLE_NAME}.json"), f"{SAMPLE_NAME}.json")
    return card


def _tiles(card: dict[str, Json]) -> "np.typing.NDArray[np.uint8]":
    """The sheet cut into (n, 32, 32, 3) tiles, row by row, after checking every pixel's sum."""
    with pillow().open(io.BytesIO(asset(f"{SAMPLE_NAME}.png"))) as picture:
        sheet = np.asarray(picture.convert("RGB"))
    if hashlib.sha256(sheet.tobytes()).hexdigest() != card["pixels_sha256"]:
        raise FileFormatError(
            f"the pixels of the bundled {SAMPLE_NAME}.png differ from its card; reinstall vqshield"
        )
    rows, columns = sheet.shape[0] // TILE, sheet.shape[1] // TILE
    return sheet.reshape(rows, TILE, columns, TILE, 3).swapaxes(1, 2).reshape(-1, TILE, TILE, 3)
