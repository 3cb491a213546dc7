"""Notes of a cell: measured once, kept in the folder, read back as what they were."""

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from vqshield.core.errors import FileFormatError
from vqshield.runs.notes import NOTES, Notes


@dataclass(frozen=True)
class Figure:
    mean: float
    runs: tuple[int, ...]


def never() -> Figure:
    raise AssertionError("it was measured a second time")


def test_a_value_is_measured_once_and_read_back_by_a_later_run(tmp_path: Path) -> None:
    figure = Figure(0.5, (1, 2))
    for folder in (None, tmp_path):
        notes = Notes(folder)
        assert notes.value(Figure, {"attack": "pgd", "eps": 0.1}, lambda: figure) == figure
        assert notes.value(Figure, {"eps": 0.1, "attack": "pgd"}, never) == figure
    assert Notes(tmp_path).value(Figure, {"attack": "pgd", "eps": 0.1}, never) == figure
    assert Notes(tmp_path).value(int, {"attack": "pgd", "eps": 0.2}, lambda: 3) == 3


def test_what_describes_a_value_may_be_a_dataclass() -> None:
    notes = Notes()
    assert [notes.value(int, Figure(mean, ()), lambda: 1) for mean in (0.1, 0.1)] == [1, 1]
    assert notes.value(int, Figure(0.2, ()), lambda: 2) == 2


def test_the_seconds_of_all_runs_add_up(tmp_path: Path) -> None:
    (tmp_path / NOTES).write_text(json.dumps(['"a"', {"seconds": 100.0, "value": 1}]) + "\n")
    assert 100 <= Notes(tmp_path).seconds < 101


@pytest.mark.parametrize("note", [1, {"seconds": "long", "value": 1}, {"value": 1}])
def test_a_file_that_holds_something_else_is_named(tmp_path: Path, note: object) -> None:
    (tmp_path / NOTES).write_text(json.dumps(['"a"', note]) + "\n")
    with pytest.raises(FileFormatError):
        Notes(tmp_path)
