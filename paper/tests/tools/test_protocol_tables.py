"""What the page says of other choices in the protocol is what the file says."""

import json
from pathlib import Path

import pytest

import protocol_tables
import recorded
from markdown_tables import cells


def cell(defense: str, measure: str, accuracy: float, paper: float) -> dict[str, object]:
    return {"defense": defense, "measure": measure, "accuracy": accuracy, "paper": paper}


RECORD = {
    "classifier": "small", "images": 500, "runs": 10, "environment": {"device": "a device", "torch": "2"},
    "variations": [
        {"varied": "nothing", "what": "as in our tables", "cells": [
            cell("a", "natural", 0.8, 0.9), cell("b", "natural", 0.6, 0.5), cell("a", "pgd", 0.3, 0.2)]},
        {"varied": "defense", "what": "5 iterations", "cells": [
            cell("a", "natural", 0.9, 0.9), cell("b", "natural", 0.4, 0.5), cell("a", "pgd", 0.2, 0.2)]},
        {"varied": "pgd", "what": "100 steps", "cells": [cell("a", "pgd", 0.1, 0.2)]},
    ],
}  # fmt: skip


def test_moves_and_distances_are_means_over_the_cells(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(recorded, "RESULTS", tmp_path)
    (tmp_path / "protocol-sensitivity-T2.json").write_text(json.dumps(RECORD))
    text = protocol_tables.protocol("T2")
    rows = cells(text)
    assert rows[0] == ["as in our tables", "", "", "", "10.0", "10.0", ""]
    assert rows[1] == ["defense: 5 iterations", "−5.0", "−10.0", "", "5.0", "0.0", ""]
    assert rows[2] == ["pgd: 100 steps", "", "−20.0", "", "", "10.0", ""]
    assert "small, the first 500 images, 10 runs" in text
