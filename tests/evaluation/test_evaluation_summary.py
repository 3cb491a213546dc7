"""The figures, from records made by hand."""

import math
from collections.abc import Mapping, Sequence

import pytest

from vqshield.core.display_names import NONE
from vqshield.core.serialization import to_plain
from vqshield.evaluation.records import EvaluationManifest, EvaluationRecord
from vqshield.evaluation.summary import EvaluationRow, EvaluationSummary
from vqshield.runs.manifests import AttackId, DefenseId, ThreatId
from vqshield.runs.study import Recorded
from vqshield.runs.target import ClassifierId, DataId

LABEL = 1
WRONG = 0


def manifest(**suites: list[tuple[str, str]]) -> EvaluationManifest:
    """Two images, one defense; each suite with its members and their levels."""
    return EvaluationManifest(
        data=DataId(name="two", images=2, sha256=""), classifier=ClassifierId(name="tiny", sha256=""),
        norm="linf", eps=0.1, runs=4, selection=4, seed=0, batch=1, machine={},
        defenses=(DefenseId(name="prd", settings={}),),
        attacks=tuple(
            AttackId(
                name=name.replace("_", "-"),
                threats=tuple(ThreatId(name=each, level=level) for each, level in members),
            )
            for name, members in suites.items()
        ),
    )  # fmt: skip


def summarise(
    manifest: EvaluationManifest,
    records: Sequence[EvaluationRecord],
    seconds: Mapping[tuple[str, str], float] | None = None,
) -> EvaluationSummary:
    return EvaluationSummary.of(Recorded(manifest=manifest, records=records, seconds=dict(seconds or {})))


def record(
    image: int, attack: str, right: str, selected: int | None = 0, defense: str = "prd", level: str = "ste"
):
    """`right` has a 1 for every run that got the image right."""
    return EvaluationRecord(
        defense=defense, attack=attack, level="none" if attack == "none" else level, image=image, label=LABEL,
        distance=0.0, selected=selected, predictions=tuple(LABEL if each == "1" else WRONG for each in right),
    )  # fmt: skip


def natural(right: tuple[str, str] = ("1111", "1111")) -> list[EvaluationRecord]:
    return [
        record(image, "none", right[image], None, defense) for defense in ("none", "prd") for image in (0, 1)
    ]


def rows(summary: EvaluationSummary) -> dict[tuple[str, str], EvaluationRow]:
    return {(row.defense, row.attack): row for row in summary.rows}


def test_the_figures_of_an_attack() -> None:
    records = [*natural(), record(0, "pgd", "1110"), record(1, "pgd", "1000")]
    summary = summarise(manifest(pgd=[("pgd", "ste")]), records, seconds={("prd", "pgd"): 1.26})
    row = rows(summary)["prd", "pgd"]
    accuracies = (1.0, 0.5, 0.5, 0.0)
    assert row.mean == 0.5
    assert row.std == pytest.approx(math.sqrt(sum((each - 0.5) ** 2 for each in accuracies) / 3))
    assert row.standard_error == pytest.approx(math.sqrt(2 * 0.25**2 / 1) / math.sqrt(2))
    assert row.vote == 0.5
    assert row.worst == 0.0
    assert (row.runs, row.n, row.level, row.seconds) == (4, 2, "ste", 1.3)
    assert summary.complete is True
    assert rows(summary)["none", "none"].mean == rows(summary)["prd", "none"].worst == 1.0


def test_a_suite_is_chosen_on_selection_draws_and_reported_on_the_others() -> None:
    spec = manifest(both=[("a", "eot"), ("b", "adaptive")], c=[("c", "ste")])
    records = [
        *natural(),
        # By the selection draws a is stronger on image 0 and b on image 1; the report draws say otherwise.
        record(0, "a", "1100", selected=1), record(1, "a", "0000", selected=3),
        record(0, "b", "0000", selected=2, level="adaptive"),
        record(1, "b", "1111", selected=0, level="adaptive"),
        record(0, "c", "1000", selected=0), record(1, "c", "0000", selected=4),
    ]  # fmt: skip
    found = rows(summarise(spec, records, seconds={("prd", "a"): 1, ("prd", "b"): 2, ("prd", "c"): 4}))
    assert [attack for _, attack in found] == ["none", "none", "a", "b", "both", "c", "adaptive"]
    assert found["prd", "both"].mean == 6 / 8
    assert found["prd", "both"].level == "adaptive"
    assert found["prd", "both"].seconds == 3
    assert found["prd", "adaptive"].mean == 5 / 8, "over all attacks, of suites or not"
    assert found["prd", "adaptive"].seconds == 7


def test_an_unfinished_run_shows_what_all_members_of_a_row_have() -> None:
    spec = manifest(both=[("a", "eot"), ("b", "eot")], c=[("c", "ste")])
    records = [*natural(), record(0, "a", "1111"), record(1, "a", "0000"), record(0, "b", "1111")]
    summary = summarise(spec, records)
    assert summary.complete is False
    found = rows(summary)
    assert {attack: row.n for (_, attack), row in found.items()} == {"none": 2, "a": 2, "b": 1, "both": 1}
    assert found["prd", "both"].mean == 1.0
    assert found["prd", "a"].seconds is None
    assert summarise(spec, []).rows == ()


def test_no_robust_accuracy_without_a_word_on_the_audit() -> None:
    records = [*natural(), record(0, "pgd", "1"), record(1, "pgd", "0")]
    spec = manifest(pgd=[("pgd", "ste")])
    summary = summarise(spec, records)
    assert summary.audit == "not run"
    assert {row.audit for row in summary.rows if row.attack != "none"} == {"not run"}
    assert "audit" not in to_plain(summary.row("prd")), "natural accuracy needs none"


@pytest.mark.parametrize(
    ("suites", "warning"),
    [
        ({}, "no attack was given"),
        ({"pgd": [("pgd", "ignorant")]}, "these attacks ignore the defense: the result flatters it"),
        ({"pgd": [("pgd", "ignorant")], "square": [("square", "black-box")]}, None),
        ({"pgd": [("pgd", "eot")]}, None),
    ],
)
def test_attacks_that_prove_little_are_called_so(suites: dict, warning: str | None) -> None:
    said = summarise(manifest(**suites), natural()).warning
    assert said is None if warning is None else warning in said


def test_a_row_is_found_by_its_names() -> None:
    summary = summarise(manifest(), natural())
    assert summary.row("prd") is rows(summary)["prd", NONE]
    assert summary.row("prd", "pgd") is None
    assert summary.title == "Accuracy of 2 images of two, classifier tiny"
