"""The files of paper/results/ and of benchmarks/results/, read for the tables of the docs.

What the packages write is read as their own types. The record of a script has no type here: the script that
writes it declares its keys, and a table names those that it shows.
"""

import gzip
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from vqshield.core.serialization import Json, from_plain

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "paper" / "results"
BENCHMARKS = ROOT / "benchmarks" / "results"

Shape = TypeVar("Shape")
Machine = Mapping[str, Json]


class Record(dict[str, Any]):
    """An object of a JSON file, whose keys are attributes too."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"the record has {', '.join(self)}, but no {name!r}") from None


def load(name: str | Path) -> Any:
    """The record of a script, packed with gzip or not."""
    content = (RESULTS / name).read_bytes()
    return json.loads(gzip.decompress(content) if str(name).endswith(".gz") else content, object_hook=Record)


def read(shape: type[Shape], name: str | Path) -> Shape:
    """A file of the package's own type; keys that no table needs are ignored."""
    return from_plain(shape, load(name), str(name), strict=False)


def stem(name: str) -> str:
    """The name of a classifier's file without its ending."""
    return name.removesuffix(".safetensors")
