"""A folder of records: what was measured of each image, safe against crashes, restarts and second processes.

manifest.json  the whole specification, written first; another specification never mixes with its records
records.jsonl  one JSON line per image and thing measured, in the order of the chunks; only ever appended to
               (records.jsonl.gz: records that somebody has put away with gzip; read as well)
times.jsonl    how long each chunk took: beside the records, which are the same however often one stops
"""

import gzip
import json
import os
import sys
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any, Generic, Self, TypeVar

from vqshield.errors import FileFormatError, InvalidInputError
from vqshield.files import write_atomically, write_json
from vqshield.runs.manifests import MANIFEST, check_same, read_manifest

RECORDS, TIMES, LOCK = "records.jsonl", "times.jsonl", ".lock"
PACKED = RECORDS + ".gz"

Key = tuple[str, str, int]
"""Defense, attack or certificate, image: what a record is of."""


@dataclass(frozen=True, kw_only=True)
class Line(ABC):
    """What was measured of one image: a line of the file. A kind of record is a subclass with its fields."""

    defense: str

    @property
    @abstractmethod
    def key(self) -> Key:
        """What it is of."""

    def line(self) -> bytes:
        """The record as it stands in the file."""
        return json.dumps(asdict(self), ensure_ascii=False).encode() + b"\n"

    @classmethod
    def parse(cls, line: bytes) -> Self:
        """The record of a line."""
        values: dict[str, Any] = dict(json.loads(line))
        for name in [name for name, value in values.items() if isinstance(value, list)]:
            values[name] = tuple(values[name])
        return cls(**values)


AnyLine = TypeVar("AnyLine", bound=Line)


@dataclass(frozen=True, kw_only=True)
class Record(Line):
    """One image, by one attack, in front of one defense.

    image: its place in the data; distance: how far the attack moved it.
    selected: right answers among the draws that attacks are compared on; None where there is no attack.
    predictions: the answers of the runs that are reported.
    """

    attack: str
    level: str
    image: int
    label: int
    distance: float
    selected: int | None
    predictions: tuple[int, ...]

    @property
    def key(self) -> Key:
        """What it is of."""
        return self.defense, self.attack, self.image


class RecordFolder(Generic[AnyLine]):
    """The records of one specification, whose chunks (the keys of each) come in a fixed order."""

    def __init__(
        self, folder: Path, chunks: Sequence[Sequence[Key]], parse: Callable[[bytes], AnyLine]
    ) -> None:
        self.folder, self._chunks, self._parse = folder, chunks, parse

    def read(self) -> list[AnyLine]:
        """The records of all whole chunks so far."""
        return self._read()[0]

    def seconds(self, records: Iterable[AnyLine]) -> dict[tuple[str, str], float]:
        """How long the chunks of records that read() gave took, by defense and attack; where it is known."""
        path, done, latest = self.folder / TIMES, {record.key for record in records}, {}
        for line in path.read_bytes().splitlines() if path.is_file() else ():
            try:
                defense, attack, image, seconds = json.loads(line)
            except ValueError:  # half a line of a run that was killed
                continue
            if (defense, attack, image) in done:
                latest[defense, attack, image] = float(seconds)
        total: dict[tuple[str, str], float] = {}
        for (defense, attack, _), seconds in latest.items():
            total[defense, attack] = total.get((defense, attack), 0.0) + seconds
        return total

    @contextmanager
    def writing(self, specification: Mapping[str, Any]) -> Iterator["Writer[AnyLine]"]:
        """Begin or go on; no other process can meanwhile."""
        self._refuse_foreign_files(specification)
        with _locked(self.folder):
            self._refuse_foreign_files(specification)
            manifest = self.folder / MANIFEST
            if not manifest.is_file():
                write_json(manifest, specification)
            records, size = self._read()
            if not (self.folder / RECORDS).is_file():
                write_atomically(self.folder / RECORDS, self._stored())  # goes on where records were put away
            with (
                (self.folder / RECORDS).open("ab") as file,
                (self.folder / TIMES).open("ab") as times,
            ):
                file.truncate(size)
                yield Writer(file, times, _whole(self._chunks, len(records)))

    def _refuse_foreign_files(self, specification: Mapping[str, Any]) -> None:
        if (self.folder / MANIFEST).is_file():
            check_same(read_manifest(self.folder), specification, self.folder)
            return
        if self.folder.exists() and not self.folder.is_dir():
            raise InvalidInputError(f"{self.folder} is a file; choose a folder for the records")
        for name in (RECORDS, "summary.json"):
            if (self.folder / name).exists():
                raise InvalidInputError(
                    f"{self.folder} holds a {name} but no {MANIFEST} that says of what; choose another folder"
                )

    def _stored(self) -> bytes:
        """The file's bytes; of records that were put away, those in records.jsonl.gz."""
        path = self.folder / RECORDS
        if path.is_file():
            return path.read_bytes()
        packed = self.folder / PACKED
        try:
            return gzip.decompress(packed.read_bytes()) if packed.is_file() else b""
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise FileFormatError(f"{packed} is damaged: {error}") from error

    def _read(self) -> tuple[list[AnyLine], int]:
        """The records of whole chunks, and how many bytes of the file they are."""
        path = self.folder / RECORDS
        lines = self._stored().splitlines(keepends=True)
        keys = [key for chunk in self._chunks for key in chunk]
        records: list[AnyLine] = []
        for number, line in enumerate(lines, start=1):
            try:
                records.append(self._parse(line))
            except (ValueError, TypeError, KeyError) as error:
                if number == len(lines):  # half a line of a run that was killed
                    break
                raise FileFormatError(f"{path}: line {number} is no record: {error}") from error
            if number > len(keys) or records[-1].key != keys[number - 1]:
                expected = keys[number - 1] if number <= len(keys) else "the end of the file"
                raise FileFormatError(
                    f"{path}: line {number} is of {records[-1].key}, expected was {expected}"
                )
            if not line.endswith(b"\n"):
                records.pop()
        whole = sum(len(chunk) for chunk in self._chunks[: _whole(self._chunks, len(records))])
        return records[:whole], sum(len(line) for line in lines[:whole])


class Records(RecordFolder[Record]):
    """The records of an evaluation."""

    def __init__(self, folder: Path, chunks: Sequence[Sequence[Key]]) -> None:
        super().__init__(folder, chunks, Record.parse)


class Writer(Generic[AnyLine]):
    """Appends chunk after chunk; `done` of them are in the file."""

    def __init__(self, file: IO[bytes], times: IO[bytes], done: int) -> None:
        self._file, self._times, self.done = file, times, done

    def append(self, chunk: Sequence[AnyLine], *, seconds: float) -> None:
        """Write the next chunk; it is on the disk when this returns."""
        self._file.write(b"".join(record.line() for record in chunk))
        self._file.flush()
        os.fsync(self._file.fileno())
        self._times.write(json.dumps([*chunk[0].key, round(seconds, 3)]).encode() + b"\n")
        self._times.flush()
        self.done += 1


def _whole(chunks: Sequence[Sequence[Key]], records: int) -> int:
    """How many whole chunks that many records are."""
    done = 0
    for chunk in chunks:
        records -= len(chunk)
        if records < 0:
            break
        done += 1
    return done


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Alone in the folder. The lock ends with the process, however that ends; the empty file stays."""
    folder.mkdir(parents=True, exist_ok=True)
    if sys.platform == "win32":  # has no flock
        yield
        return
    import fcntl

    with (folder / LOCK).open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise InvalidInputError(
                f"another process is writing into {folder}; wait for it, or choose another folder"
            ) from error
        yield
