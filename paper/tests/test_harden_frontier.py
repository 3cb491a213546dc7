"""research/harden_frontier.py and research/corruptions.py in all but their measurements, which take a GPU."""

import argparse
import json
from collections.abc import Mapping
from pathlib import Path

import pytest

import corruptions
import harden_frontier as frontier
from harden_frontier import Row, Rung, Subject
from vqshield.core.serialization import from_plain, to_plain

ROOT = Path(__file__).resolve().parents[1]
SWRD = "swrd:size=3,codes=25"


def row(name: str, means: Mapping[str, float], *, defense: str = SWRD, **changes: object) -> Row:
    measured = {
        rung: Rung(mean=mean, std=0.0, standard_error=0.01, vote=mean, runs=10, n=100, seconds=1.0)
        for rung, mean in means.items()
    }
    return Row(
        subject=Subject(name=name, defense=defense, **changes), weights_sha256="ab", before=0.7, after=0.9,
        training={}, training_seconds=30.0, rungs=measured,
    )  # fmt: skip


def laboratory(work: Path) -> frontier.Laboratory:
    return frontier.Laboratory(argparse.Namespace(work=work, weights="given.safetensors"))


def test_names_are_used_once_and_controls_are_among_the_subjects() -> None:
    for subjects in (frontier.frontier(), frontier.twins()):
        assert len({each.name for each in subjects}) == len(subjects)
    defenses = {each.defense for each in frontier.frontier()}
    assert {"none", "gaussian:sigma=0.06", "gaussian:sigma=0.12"} <= defenses


def test_a_final_is_its_subject_tuned_for_longer() -> None:
    for each in frontier.frontier():
        longer = frontier.final(each)
        assert (longer.defense, longer.method, longer.seed) == (each.defense, each.method, each.seed)
        assert longer.name != each.name
        assert longer.epochs > each.epochs


@pytest.mark.parametrize("option", ["finals", "only"])
def test_an_unknown_subject_is_refused_with_those_there_are(tmp_path: Path, option: str) -> None:
    given = {"also": [], "twins": False, "finals": [], "only": [], option: ["swrd-26"]}
    with pytest.raises(SystemExit, match=r"no subject \['swrd-26'\]; there are bare, .*swrd-25"):
        frontier.work(argparse.Namespace(work=tmp_path, deadline=1.0, **given))


def test_every_seed_has_a_line_before_any_second_point_with_a_shield() -> None:
    first = frontier.twins()[:9]
    assert [(each.seed, each.defense != "none") for each in first] == [
        (seed, shield) for seed in (0, 1, 2) for shield in (False, False, True)
    ]


def test_a_rung_that_no_subject_has_is_refused(tmp_path: Path) -> None:
    given = {"also": [], "twins": False, "finals": [], "only": ["bare"], "rungs": ["natural", "adaptive"]}
    with pytest.raises(SystemExit, match="none of these subjects is measured on adaptive"):
        frontier.work(argparse.Namespace(work=tmp_path, deadline=1.0, **given))


class TestPreset:
    """The worst rung decides; controls and unchanged classifiers are not presets."""

    def test_the_one_whose_worst_rung_is_best_is_taken(self) -> None:
        natural = row("natural", {"natural": 0.95, "transfer": 0.9, "ignorant": 0.9, "square5": 0.5})
        balanced = row("balanced", {"natural": 0.9, "transfer": 0.87, "ignorant": 0.83, "square5": 0.73})
        assert frontier.preset([natural, balanced], frontier.HEAVY) is balanced
        assert frontier.slack(balanced, frontier.HEAVY) == pytest.approx(-0.01)
        assert frontier.preset([natural, balanced], frontier.HEAVY, other_than=balanced) is natural

    @pytest.mark.parametrize(
        "changes",
        [
            {"defense": "gaussian:sigma=0.06"},
            {"epochs": 0},
            {"epochs": 30},
            {"method": "adversarial:eps=8/255"},
        ],
    )
    def test_others_are_not(self, changes: dict[str, object]) -> None:
        high = dict.fromkeys(frontier.HEAVY, 0.99)
        assert frontier.preset([row("other", high, **changes)], frontier.HEAVY) is None

    def test_nor_one_that_is_not_measured_to_its_end(self) -> None:
        assert frontier.preset([row("begun", {"natural": 0.99})], frontier.LIGHT) is None


class TestEarlierRuns:
    """What lies in the folder of work."""

    def test_rows_come_back_as_they_were_kept(self, tmp_path: Path) -> None:
        place, kept = laboratory(tmp_path), row("mine", {"natural": 0.9})
        place.keep(kept)
        assert place.kept(kept.subject) == kept
        assert place.kept(Subject(name="other", defense=SWRD)) is None

    def test_a_row_of_another_subject_is_refused(self, tmp_path: Path) -> None:
        place = laboratory(tmp_path)
        place.keep(row("mine", {}))
        with pytest.raises(SystemExit, match="another subject"):
            place.kept(Subject(name="mine", defense="prd"))

    def test_weights_that_were_left_behind_are_needed_only_for_what_is_missing(self, tmp_path: Path) -> None:
        place, few = laboratory(tmp_path), ("natural",)
        finished = row("mine", {"natural": 0.9}, rungs=few)
        place.keep(finished)
        assert place.hardened(finished.subject) == finished
        unfinished = Subject(name="mine", defense=SWRD, rungs=("natural", "adaptive"))
        with pytest.raises(AttributeError):  # it begins to train, for which these options are too few
            place.hardened(unfinished)
        (tmp_path / "mine.safetensors").touch()
        assert place.hardened(unfinished).rungs == finished.rungs

    def test_kept_corruptions_are_read_and_written_alike(self) -> None:
        path = ROOT / "results" / "corruptions-cifar10-resnet18.json"
        record = json.loads(path.read_text())
        rows = from_plain(tuple[corruptions.Row, ...], record["rows"], path.name)
        assert to_plain(rows) == record["rows"]
        assert record["complete"]
        assert len(rows) == 8 * len(corruptions.conditions()) == len({row.key for row in rows})

    def test_corruptions_are_measured_of_whatever_has_weights(self, tmp_path: Path) -> None:
        place = laboratory(tmp_path)
        for name in ("mine", "lost"):
            place.keep(row(name, {}))
        (tmp_path / "mine.safetensors").touch()
        options = argparse.Namespace(
            weights="given.safetensors",
            work=tmp_path,
            only=[],
            model=[f"tuned=small-cifar10-hardened+{SWRD}"],
        )
        assert [(each.subject, each.defense) for each in corruptions.models(options)] == [
            ("bare", "none"), ("tuned", SWRD), ("tuned", "none"), ("mine", SWRD), ("mine", "none"),
        ]  # fmt: skip
