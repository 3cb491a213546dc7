"""The figures, from records made by hand."""

import math

import pytest
from vqshield.studies.summary import summarise

from vqshield.runs.records import Record

LABEL = 1
WRONG = 0


def specification(**suites: list[tuple[str, str]]) -> dict:
    """Two images, one defense; each suite with its members and their levels."""
    attacks = [
        {
            "name": name.replace("_", "-"),
            "threats": [{"name": each, "level": level} for each, level in members],
        }
        for name, members in suites.items()
    ]
    return {
        "data": {"name": "two", "images": 2}, "classifier": {"name": "tiny"}, "defenses": [{"name": "prd"}],
        "attacks": attacks, "batch": 1,
    }  # fmt: skip


def record(
    image: int, attack: str, right: str, selected: int | None = 0, defense: str = "prd", level: str = "ste"
):
    """`right` has a 1 for every run that got the image right."""
    return Record(
        defense=defense, attack=attack, level="none" if attack == "none" else level, image=image, label=LABEL,
        distance=0.0, selected=selected, predictions=tuple(LABEL if each == "1" else WRONG for each in right),
    )  # fmt: skip


def natural(right: tuple[str, str] = ("1111", "1111")) -> list[Record]:
    return [
        record(image, "none", right[image], None, defense) for defense in ("none", "prd") for image in (0, 1)
    ]


def rows(summary: dict) -> dict[tuple[str, str], dict]:
    return {(row["defense"], row["attack"]): row for row in summary["rows"]}


def test_the_figures_of_an_attack() -> None:
    records = [*natural(), record(0, "pgd", "1110"), record(1, "pgd", "1000")]
    summary = summarise(specification(pgd=[("pgd", "ste")]), records, seconds={("prd", "pgd"): 1.26})
    row = rows(summary)["prd", "pgd"]
    accuracies = (1.0, 0.5, 0.5, 0.0)
    assert row["mean"] == 0.5
    assert row["std"] == pytest.approx(math.sqrt(sum((each - 0.5) ** 2 for each in accuracies) / 3))
    assert row["standard_error"] == pytest.approx(math.sqrt(2 * 0.25**2 / 1) / math.sqrt(2))
    assert row["vote"] == 0.5
    assert row["worst"] == 0.0
    assert (row["runs"], row["n"], row["level"], row["seconds"]) == (4, 2, "ste", 1.3)
    assert summary["complete"] is True
    assert rows(summary)["none", "none"]["mean"] == rows(summary)["prd", "none"]["worst"] == 1.0


def test_a_suite_is_chosen_on_selection_draws_and_reported_on_the_others() -> None:
    spec = specification(both=[("a", "eot"), ("b", "adaptive")], c=[("c", "ste")])
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
    assert found["prd", "both"]["mean"] == 6 / 8
    assert found["prd", "both"]["level"] == "adaptive"
    assert found["prd", "both"]["seconds"] == 3
    assert found["prd", "adaptive"]["mean"] == 5 / 8, "over all attacks, of suites or not"
    assert found["prd", "adaptive"]["seconds"] == 7


def test_an_unfinished_run_shows_what_all_members_of_a_row_have() -> None:
    spec = specification(both=[("a", "eot"), ("b", "eot")], c=[("c", "ste")])
    records = [*natural(), record(0, "a", "1111"), record(1, "a", "0000"), record(0, "b", "1111")]
    summary = summarise(spec, records)
    assert summary["complete"] is False
    found = rows(summary)
    assert {attack: row["n"] for (_, attack), row in found.items()} == {"none": 2, "a": 2, "b": 1, "both": 1}
    assert found["prd", "both"]["mean"] == 1.0
    assert found["prd", "a"]["seconds"] is None
    assert summarise(spec, [])["rows"] == []


def test_no_robust_accuracy_without_a_word_on_the_audit() -> None:
    records = [*natural(), record(0, "pgd", "1"), record(1, "pgd", "0")]
    spec = specification(pgd=[("pgd", "ste")])
    summary = summarise(spec, records)
    assert summary["audit"] == "not run"
    assert {row.get("audit") for row in summary["rows"] if row["attack"] != "none"} == {"not run"}
    audited = summarise(spec, records, audit={"prd": "passed"})
    assert {row["audit"] for row in audited["rows"] if row["attack"] != "none"} == {"passed"}
    assert audited["audit"] == {"prd": "passed"}


@pytest.mark.parametrize(
    ("suites", "warning"),
    [
        ({}, "no attack was given"),
        ({"pgd": [("pgd", "ignorant")]}, "these attacks ignore the defense: the figure flatters it"),
        ({"pgd": [("pgd", "ignorant")], "square": [("square", "black-box")]}, None),
        ({"pgd": [("pgd", "eot")]}, None),
    ],
)
def test_attacks_that_prove_little_are_called_so(suites: dict, warning: str | None) -> None:
    said = summarise(specification(**suites), natural())["warning"]
    assert said is None if warning is None else warning in said
