"""A folder of records: what was measured of each image, safe against crashes, restarts and second processes.

manifest.json  what the records are of, in full, written first; records of other settings never mix with them
records.jsonl  one JSON line per image and thing measured, in the order of the cells; only ever appended to
               (records.jsonl.gz: packed with gzip; read as well)
times.jsonl    how long each cell took, and a digest of its lines; kept apart, so that the records are the
same however often a run stops
"""

import gzip
import hashlib
import json
import os
import sys
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any, Generic, Self, TypeVar

from vqshield.core.errors import FileFormatError, InvalidInputError
from vqshield.core.files import refuse_symlink, write_atomically, write_json
from vqshield.core.serialization import to_plain
from vqshield.runs.manifests import MANIFEST, check_same, read_plain_manifest

RECORDS, TIMES, LOCK = "records.jsonl", "times.jsonl", ".lock"
PACKED = RECORDS + ".gz"

Key = tuple[str, str, int]
"""Defense, attack or certificate, image: what identifies a record."""


@dataclass(frozen=True, kw_only=True)
class Record(ABC):
    """One measurement of one image, a line of the file; every kind of study has a subclass of its own."""

    defense: str

    @property
    @abstractmethod
    def key(self) -> Key:
        """What identifies it."""

    def line(self) -> bytes:
        return json.dumps(asdict(self), ensure_ascii=False).encode() + b"\n"

    @classmethod
    def parse(cls, line: bytes) -> Self:
        values: dict[str, Any] = dict(json.loads(line))
        for name in [name for name, value in values.items() if isinstance(value, list)]:
            values[name] = tuple(values[name])
        return cls(**values)


AnyRecord = TypeVar("AnyRecord", bound=Record)


class RecordFolder(Generic[AnyRecord]):
    """The records of one study, whose cells (the keys of each) come in a fixed order."""

    def __init__(
        self,
        folder: Path,
        cells: Sequence[Sequence[Key]],
        parse: Callable[[bytes], AnyRecord],
        problem: Callable[[AnyRecord], str | None] = lambda _: None,
    ) -> None:
        """problem: what is impossible in a record; None: nothing."""
        self.folder, self._cells, self._parse, self._problem = folder, cells, parse, problem

    def read(self) -> list[AnyRecord]:
        """The records of all whole cells so far."""
        return self._read()[0]

    def seconds(self, records: Iterable[AnyRecord]) -> dict[tuple[str, str], float]:
        """How long the cells of these records took, by defense and attack; where it is known."""
        done = {record.key for record in records}
        total: dict[tuple[str, str], float] = {}
        for key, (seconds, _) in self._written().items():
            if key in done:
                total[key[:2]] = total.get(key[:2], 0.0) + seconds
        return total

    @contextmanager
    def writing(self, manifest: object) -> Iterator["Writer[AnyRecord]"]:
        """Start or resume; other processes are kept out meanwhile."""
        self._refuse_foreign_files(manifest)
        with _locked(self.folder):
            self._refuse_foreign_files(manifest)
            if not (self.folder / MANIFEST).is_file():
                write_json(self.folder / MANIFEST, to_plain(manifest))
            records, size = self._read()
            if not (self.folder / RECORDS).is_file():
                write_atomically(self.folder / RECORDS, self._stored())  # continues where records were packed
            with (
                (self.folder / RECORDS).open("ab") as file,
                (self.folder / TIMES).open("ab") as times,
            ):
                file.truncate(size)
                yield Writer(file, times, _whole(self._cells, len(records)))

    def _refuse_foreign_files(self, manifest: object) -> None:
        for name in (RECORDS, TIMES, LOCK):
            refuse_symlink(self.folder / name)
        if (self.folder / MANIFEST).is_file():
            check_same(self.folder, read_plain_manifest(self.folder), manifest)
            return
        if self.folder.exists() and not self.folder.is_dir():
            raise InvalidInputError(f"{self.folder} is a file; choose a folder for the records")
        for name in (RECORDS, "summary.json", "audit.json"):
            if (self.folder / name).exists():
                raise InvalidInputError(
                    f"{self.folder} holds a {name} but no {MANIFEST} that says of what; choose another folder"
                )

    def _written(self) -> dict[Key, tuple[float, str | None]]:
        """Seconds and digest (None: of an earlier version) of each cell, by the key of its first record."""
        path, written = self.folder / TIMES, dict[Key, tuple[float, str | None]]()
        for line in path.read_bytes().splitlines() if path.is_file() else ():
            try:
                defense, what, image, seconds, *digest = json.loads(line)
                key = str(defense), str(what), int(image)
                written[key] = float(seconds), str(digest[0]) if digest else None
            except (ValueError, TypeError, RecursionError):  # half a line of a run that was killed
                continue
        return written

    def _stored(self) -> bytes:
        """The file's bytes, unpacked where it is records.jsonl.gz."""
        path = self.folder / RECORDS
        if path.is_file():
            return path.read_bytes()
        packed = self.folder / PACKED
        try:
            return gzip.decompress(packed.read_bytes()) if packed.is_file() else b""
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise FileFormatError(f"{packed} is damaged: {error}") from error

    def _read(self) -> tuple[list[AnyRecord], int]:
        """The records of whole cells, and how many bytes of the file they are."""
        path = self.folder / RECORDS
        lines = self._stored().splitlines(keepends=True)
        keys = [key for cell in self._cells for key in cell]
        records: list[AnyRecord] = []
        for number, line in enumerate(lines, start=1):
            try:
                records.append(self._parse(line))
            except (ValueError, TypeError, KeyError, RecursionError) as error:
                if number == len(lines):  # half a line of a run that was killed
                    break
                raise FileFormatError(f"{path}: line {number} is not a record: {error}") from error
            if number > len(keys) or records[-1].key != keys[number - 1]:
                expected = keys[number - 1] if number <= len(keys) else "the end of the file"
                raise FileFormatError(
                    f"{path}: line {number} is of {records[-1].key}, expected was {expected}"
                )
            if not line.endswith(b"\n"):
                records.pop()
            elif problem := self._problem(records[-1]):
                raise FileFormatError(f"{path}: line {number} cannot be: {problem}")
        finished = self._cells[: _whole(self._cells, len(records))]
        whole = sum(map(len, finished))
        self._refuse_changed(finished, lines)
        return records[:whole], sum(len(line) for line in lines[:whole])

    def _refuse_changed(self, finished: Sequence[Sequence[Key]], lines: Sequence[bytes]) -> None:
        """Refuse records whose digest differs from the one in times.jsonl."""
        written, first = self._written(), 0
        for cell in finished:
            _, digest = written.get(cell[0], (0.0, None))
            if digest not in (None, _digest(b"".join(lines[first : first + len(cell)]))):
                raise FileFormatError(
                    f"{self.folder / RECORDS}: lines {first + 1} to {first + len(cell)} are not what was "
                    f"written; restore the file, or delete the folder and measure again"
                )
            first += len(cell)


def _digest(lines: bytes) -> str:
    return hashlib.sha256(lines).hexdigest()[:32]


class Writer(Generic[AnyRecord]):
    """Appends cell after cell; `done` of them are in the file."""

    def __init__(self, file: IO[bytes], times: IO[bytes], done: int) -> None:
        self._file, self._times, self.done = file, times, done

    def append(self, cell: Sequence[AnyRecord], *, seconds: float) -> None:
        """Write the next cell; it is on the disk when this returns."""
        lines = b"".join(record.line() for record in cell)
        self._file.write(lines)
        self._file.flush()
        os.fsync(self._file.fileno())
        self._times.write(json.dumps([*cell[0].key, round(seconds, 3), _digest(lines)]).encode() + b"\n")
        self._times.flush()
        self.done += 1


def _whole(cells: Sequence[Sequence[Key]], records: int) -> int:
    """How many whole cells that many records are."""
    done = 0
    for cell in cells:
        records -= len(cell)
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
