"""docs/speed.md says where a GPU's time goes."""

import json
from pathlib import Path

import pytest

import recorded
import stage_table


def test_every_stage_has_a_line_and_every_size_a_column(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [
        {"images": 2, "side": side, "codes": codes, "stage": stage, "microseconds": side * share}
        for side, codes in ((32, 25), (328, 30))
        for stage, share in (("rounds", 0.02), ("whole call", 0.04))
    ]
    record = {"machine": {"device": "a GPU", "torch": "2"}, "rows": rows}
    (tmp_path / "stages-cuda.json").write_text(json.dumps(record))
    monkeypatch.setattr(recorded, "BENCHMARKS", tmp_path)
    assert stage_table.stages().splitlines() == [
        "| µs an image | 2 of 32×32, k=25 | 2 of 328×328, k=30 |",
        "|---|---|---|",
        "| rounds | 0.64 | 6.56 |",
        "| whole call | 1.28 | 13.1 |",
        "",
        "a GPU, torch 2.",
    ]
