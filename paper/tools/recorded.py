"""The files of paper/results/, read as dataclasses: the program's, or small ones for one-off records."""

import gzip
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from vqshield.core.serialization import Json, from_plain

RESULTS = Path(__file__).resolve().parents[1] / "results"

Shape = TypeVar("Shape")
Machine = Mapping[str, Json]


@dataclass(frozen=True, kw_only=True)
class Images:
    """How many images a record is of."""

    images: int


@dataclass(frozen=True, kw_only=True)
class Classifier:
    """Which classifier, by its file's name."""

    name: str

    @property
    def stem(self) -> str:
        """Without the file's ending."""
        return stem(self.name)


def read(shape: type[Shape], name: str | Path) -> Shape:
    """One file of paper/results/, packed with gzip or not; keys that no table needs are passed over."""
    content = (RESULTS / name).read_bytes()
    if str(name).endswith(".gz"):
        content = gzip.decompress(content)
    return from_plain(shape, json.loads(content), str(name), strict=False)


def stem(name: str) -> str:
    """The name of a classifier's file without its ending."""
    return name.removesuffix(".safetensors")
