"""Notes: what a long cell has measured so far, written at once, so that it resumes where it stopped."""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from vqshield.core.files import Journal
from vqshield.core.serialization import Json, from_plain, to_plain

NOTES = "notes.jsonl"
Measured = TypeVar("Measured")


@dataclass(frozen=True, kw_only=True)
class _Note:
    seconds: float
    value: Json


class Notes:
    """Measured values by their descriptions.

    Args:
        folder: the folder of the study's records, whose manifest keeps other settings away (default: keep the
            values in memory).

    Example:
        >>> from vqshield.runs.notes import Notes
        >>> notes = Notes()
        >>> notes.value(int, {"of": "images"}, lambda: 3), notes.value(int, {"of": "images"}, lambda: 4)
        (3, 3)
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._file: dict[str, Json] = {} if folder is None else Journal(folder / NOTES)
        self._notes = {key: from_plain(_Note, held, key) for key, held in self._file.items()}
        self._since = time.perf_counter()

    def value(self, kind: type[Measured], of: object, measure: Callable[[], Measured]) -> Measured:
        """The value that an earlier call or run has measured, else measure and keep it.

        kind, of: its type, and everything that decides it within the study; dataclasses, or of JSON.
        """
        key = json.dumps(to_plain(of), sort_keys=True)
        if key not in self._notes:
            value: Json = to_plain(measure())
            now = time.perf_counter()
            note = _Note(seconds=now - self._since, value=value)
            self._since, self._notes[key], self._file[key] = now, note, to_plain(note)
        return from_plain(kind, self._notes[key].value, key)

    @property
    def seconds(self) -> float:
        """Seconds that all values took in every run, and those since the latest of them."""
        return sum(note.seconds for note in self._notes.values()) + time.perf_counter() - self._since
