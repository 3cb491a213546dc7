"""Every result of a verb is a table in every form: JSON, CSV, LaTeX and pandas."""

import csv
import importlib
import io
import json
import math
import pkgutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

import vqshield as vq
from vqshield.auditing import AuditSettings
from vqshield.ladders.settings import LadderSettings
from vqshield.leaderboards.study import BoardSettings
from vqshield.reports.table import Table, Tabular
from vqshield_deploy import compare, gate

TINY = LadderSettings(calls=(100,), draws=(1,), suite="pgd:steps=1", runs=2, selection=1)
REHEARSAL = AuditSettings(runs=2, queries=2, directions=1, draws=4, probe="pgd:steps=1", rehearsal=True)
NOISY = "prd:sigma=0.1,tau=0.1"
PHOTOS = vq.data.sample(4)
IMAGES, LABELS = PHOTOS.floats(), PHOTOS.labels


RESULTS: dict[str, Callable[[Path], Tabular]] = {
    "EvaluationSummary": lambda _: vq.evaluate(defense="prd", attacks="pgd:steps=1", limit=2, samples=2),
    "CertificationSummary": lambda _: vq.certify(
        defense=NOISY, attack="pgd:steps=1", bound_samples=8, selection=4, samples=8, limit=2
    ),
    "L1Summary": lambda _: vq.certify_l1(defense="splitting:scale=0.05", limit=2),
    "AuditReport": lambda _: vq.audit(
        "small-cifar10", IMAGES, LABELS, defense="prd", attacks="pgd:steps=1", settings=REHEARSAL
    ),
    "LadderSummary": lambda _: vq.ladder(defense="prd", settings=TINY, limit=2),
    "BoardSummary": lambda out: vq.leaderboard(
        out, ["bitdepth"], settings=BoardSettings(ladder=TINY, audit=REHEARSAL), limit=1
    ),
    "Calibration": lambda _: vq.calibrate("small-cifar10", IMAGES, defense="prd").calibration,
    "Hardened": lambda out: vq.harden("small-cifar10", "prd", IMAGES, LABELS, epochs=1, batch=2, out=out),
    "Comparison": lambda out: compared(out),
    "GateReport": lambda out: gated(out),
}  # fmt: skip


def compared(out: Path) -> Tabular:
    for name, defense in (("first", "prd"), ("second", "swrd")):
        vq.evaluate(defense=defense, limit=4, samples=1, out=out / name)
    return compare(out / "first", out / "second")


def gated(out: Path) -> Tabular:
    compared(out)
    policy = out / "policy.toml"
    check = 'run = "first", attack = "clean", least = 0.1'
    policy.write_text(f'level = 0.05\nrun.first.folder = "{out / "first"}"\ncheck = [{{{check}}}]')
    return gate(policy, out=out / "gate")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Tabular]:
    kept: dict[str, Tabular] = {}

    def result(name: str) -> Tabular:
        if name not in kept:
            kept[name] = RESULTS[name](tmp_path_factory.mktemp(name))
        return kept[name]

    return result


def test_every_kind_of_result_is_tried_here() -> None:
    for each in pkgutil.walk_packages(vq.__path__, "vqshield.", onerror=lambda name: None):
        if "._native" not in each.name and "integrations" not in each.name:
            importlib.import_module(each.name)
    kinds = [each for each in Tabular.__subclasses__() if each.__module__.startswith("vqshield")]
    assert sorted(each.__name__ for each in kinds) == sorted(RESULTS)


@pytest.mark.filterwarnings("ignore:no calibration with")
@pytest.mark.parametrize("name", RESULTS)
def test_a_result_leaves_in_every_form(
    name: str, made: Callable[[str], Tabular], monkeypatch: pytest.MonkeyPatch
) -> None:
    result = made(name)
    table = result.table
    assert isinstance(table, Table)
    records = table.records()
    assert records
    plain = json.loads(result.to_json())
    assert plain["title"] == table.title
    assert len(plain["rows"]) == len(records)
    lines = list(csv.DictReader(io.StringIO(result.to_csv())))
    assert len(lines) == len(records)
    for line, record, row in zip(lines, records, plain["rows"], strict=True):
        for key, value in record.items():
            if isinstance(value, float) and math.isfinite(value):
                assert float(line[key]) == row[key] == value  # as measured, not rounded
    tabular = result.to_latex()
    assert tabular.startswith(r"\begin{tabular}")
    assert tabular.endswith(r"\end{tabular}")
    pandas = ModuleType("pandas")
    pandas.DataFrame = type("DataFrame", (), {"from_records": staticmethod(list)})  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pandas", pandas)
    assert result.to_pandas() == records


def test_certificates_of_both_kinds_are_one_table(made: Callable[[str], Tabular]) -> None:
    """The votes' curve and the error bounds follow each other, each below the name of its kind."""
    found = made("CertificationSummary")
    assert isinstance(found, vq.certification.summary.CertificationSummary)
    votes, bounds = found.tables()
    records = found.table.records()
    assert len(records) == len(votes.records()) + len(bounds.records())
    assert [each["vote"] for each in records] == [
        *(each["vote"] for each in votes.records()),
        *[None] * len(bounds.records()),
    ]
    assert {str(each["section"]).partition(": ")[0] for each in records} == {found.title.partition(": ")[0]}


def test_an_unfinished_certification_is_an_empty_table(made: Callable[[str], Tabular]) -> None:
    from dataclasses import replace

    found = made("CertificationSummary")
    assert isinstance(found, vq.certification.summary.CertificationSummary)
    empty = replace(found, vote=None, draws=())
    assert json.loads(empty.to_json())["rows"] == []
    assert empty.to_csv().strip() == "radius"
