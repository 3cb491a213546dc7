"""What the page on speed says of growth is what was measured."""

import importlib
import json
import sys
from pathlib import Path

import pytest

import recorded

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(autouse=True)
def tools(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(ROOT / "paper" / "tools"), str(ROOT / "benchmarks"), *sys.path])


def test_a_power_law_is_found() -> None:
    growth = importlib.import_module("growth")
    values = [1, 2, 4, 8]
    assert growth.slope(values, [3.0 * value**2 for value in values]) == 2.0
    rows = [
        growth.GrowthPoint(
            axis="codes", value=value, batch=64, threads=1, seconds_a_call=value,
            images_per_second=64 / value, peak_bytes=1000,
        )
        for value in values
    ]  # fmt: skip
    assert growth.exponents("codes", rows) == growth.Exponents(
        axis="codes", time=1.0, time_at_the_end=1.0, memory=0.0, memory_at_the_end=0.0
    )
    assert growth.exponents("threads", rows).memory is None


def test_the_table_shows_powers_and_points(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tables = importlib.import_module("growth_tables")
    monkeypatch.setattr(recorded, "BENCHMARKS", tmp_path)
    assert "python benchmarks/growth.py --device cpu" in tables.growth("cpu")
    record = {
        "machine": {"processor": "one", "cores": 2, "threads": 2, "torch": "2", "device": "cpu"},
        "points": [{"axis": "side", "value": 32, "images_per_second": 1234.5, "peak_bytes": 2_500_000}],
        "exponents": [
            {"axis": "side", "time": 2.0, "time_at_the_end": -0.5, "memory": None, "memory_at_the_end": None}
        ],
    }
    (tmp_path / "growth-cpu.json").write_text(json.dumps(record))
    assert "| side of the image | 2.00 | −0.50 | – | – | 32: 1,234, 2.5 |" in tables.growth("cpu")
    assert "images/growth-cpu.png" in tables.plot("cpu")


def test_kinds_are_shown_beside_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tables = importlib.import_module("growth_tables")
    monkeypatch.setattr(recorded, "BENCHMARKS", tmp_path)
    assert "python benchmarks/growth.py --device cpu --kinds" in tables.kinds("cpu")
    point = {
        "axis": "dtype", "value": 32, "images_per_second": 1234.5, "peak_bytes": 2_500_000, "batch": 1024,
        "dtype": "uint8",
    }  # fmt: skip
    machine = {"processor": "one", "cores": 2, "threads": 2, "torch": "2", "device": "cpu"}
    (tmp_path / "kinds-cpu.json").write_text(
        json.dumps({"machine": machine, "points": [point], "exponents": []})
    )
    assert "| 1024 of 32×32 | uint8 | 1,234 | 2.5 |" in tables.kinds("cpu")
