"""What other libraries' tests say of a shielded model: the report is read, the table says what was needed."""

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

import integration_tables
import recorded

ROOT = Path(__file__).resolve().parents[3]
REPORT = """<testsuites><testsuite>
<testcase classname="code_coverage.test_atks" name="test_atks[FGSM]" />
<testcase classname="code_coverage.test_atks" name="test_atks[SPSA]">
  <failure message="assert 1.0 &gt;= 2.0">trace</failure>
  <system-out>SPSA         test acc Error
images contain 1.2; every value should lie in [0, 1]
</system-out></testcase>
<testcase classname="tests.test_hsj" name="test_hsj"><skipped message="slow" /></testcase>
<testcase classname="tests.test_eot" name="test_eot[pytorch_mnist]">
  <error message="ValueError: init_attack failed&#10;more" /></testcase>
</testsuite></testsuites>"""


@pytest.fixture
def peer_suites() -> ModuleType:
    spec = importlib.util.spec_from_file_location("peer_suites", ROOT / "benchmarks" / "peer_suites.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["peer_suites"] = module  # dataclasses look their types up there
    spec.loader.exec_module(module)
    return module


def test_a_report_is_read_with_the_first_line_of_each_error(peer_suites: ModuleType) -> None:
    found = peer_suites.outcomes(REPORT)
    assert [test.outcome for test in found.values()] == ["passed", "failed", "skipped", "failed"]
    assert found["code_coverage/test_atks.py::test_atks[SPSA]"].error.startswith("images contain 1.2;")
    assert found["tests/test_eot.py::test_eot[pytorch_mnist]"].error == "ValueError: init_attack failed"


def test_the_first_settings_that_help_are_noted(peer_suites: ModuleType) -> None:
    found = peer_suites.outcomes(REPORT)
    missing = [test for test in found.values() if test.outcome == "failed"]
    spsa, eot = missing
    fixed = peer_suites.Test(name=spsa.name, outcome="passed")
    tried = {"range=clamp": {eot.name: eot}, "streams=content": {spsa.name: fixed, eot.name: eot}}
    needed = peer_suites.settings_needed(missing, tried)
    assert [each.passes_with for each in needed] == ["streams=content", ""]


def test_the_table_names_what_was_needed_and_what_failed(tmp_path: Path, monkeypatch) -> None:
    needed = [
        {"test": f"tests/a.py::test_x[pytorch_mnist-{name}(steps=3)]", "error": "e", "passes_with": settings}
        for name, settings in (("EAD", "range=clamp"), ("EAD", "range=clamp"), ("Boundary", ""))
    ]
    needed.append({"test": "tests/b.py::test_eot[pytorch_mnist]", "error": "", "passes_with": ""})
    row = {
        "library": "foolbox", "version": "3", "commit": "ab", "bare_passed": 10, "shielded_passed": 7,
        "differences": needed,
    }  # fmt: skip
    record = {"defense": "prd", "environment": {"torch": "2", "python": "3"}, "rows": [row]}
    (tmp_path / "peer-suites.json").write_text(json.dumps(record))
    monkeypatch.setattr(recorded, "BENCHMARKS", tmp_path)
    text = integration_tables.peer_suites()
    assert "| foolbox 3 | 10 | 7 | 9 |" in text
    assert "foolbox, with `range=clamp`: EAD (2)." in text
    assert "foolbox, with none of the settings tried: Boundary, eot." in text
