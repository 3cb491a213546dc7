"""What several experiments, or several defenses, need is done once: attacks, records behind two plots."""

import json
import statistics
from pathlib import Path

import pytest
from small_experiments import CURVES, PART, lines_of, planned, records, small, text_of
from torch import Tensor, nn

from vqshield.attacks import PGD
from vqshield.core.serialization import to_plain
from vqshield.runs.executors import LocalExecutor
from vqshield_paper.reproduction import experiments, published
from vqshield_paper.reproduction.experiments import experiment
from vqshield_paper.reproduction.runner import summarise_folder

CERTIFIED = """
[[parts]]
kind = "certified"
name = "few"
title = "Few"
data = "cifar10"
unit = "1/255"
eps = [0, 8]
count = 3
draws = 4
attack = "pgd:steps=2,surrogate=none"
defenses = ["randdisc:codes=25", "prd:size=2,codes=25"]
"""


@pytest.fixture
def attacks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The seeds of all attacks that were run."""
    seeds: list[int] = []
    original = PGD.run

    def counted(self: PGD, model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
        seeds.append(self.seed)
        return original(self, model, images, labels)

    monkeypatch.setattr(PGD, "run", counted)
    return seeds


def test_images_that_ignore_the_defense_are_found_once_for_two_experiments(
    tmp_path: Path, attacks: list[int]
) -> None:
    planned(small(), tmp_path, limit=4).run()
    assert len(attacks) == 1, "one chunk, whatever the number of defenses"
    attacks.clear()
    other = PART.replace("prd:size=2,codes=25", "randdisc:codes=25")
    planned(small(other, id="T3"), tmp_path, limit=4).run()
    assert attacks == []
    alone = tmp_path / "alone"
    planned(small(other, id="T3"), alone, limit=4).run()
    assert len(attacks) == 1
    assert (
        records(alone)["T3/few/protocol/records.jsonl"] == records(tmp_path)["T3/few/protocol/records.jsonl"]
    )


def test_certificates_of_several_defenses_share_their_attack(tmp_path: Path, attacks: list[int]) -> None:
    planned(small(CERTIFIED, id="F7", shows="curves"), tmp_path).run()
    assert len(attacks) == len(set(attacks)) == 1
    (part,) = summarise_folder(tmp_path / "F7").parts
    assert part.status == "complete"
    assert [(row.defense, row.x) for row in part.rows] == [
        (defense, x) for defense in ("randdisc:codes=25", "prd:size=2,codes=25") for x in (0, 8)
    ]
    for row in part.rows:
        folder = tmp_path / "F7" / "few" / row.defense.replace(":", "-").replace(",", "-").replace("=", "")
        of = [line for line in lines_of(folder) if line["eps"] == pytest.approx(row.x / 255)]
        expected = statistics.fmean(1 - line["bounds"]["proposition1"] for line in of)
        assert row.value("certified").ours == pytest.approx(expected)
        right = statistics.fmean(1 - line["errors"] / 4 for line in of)
        assert row.value("accuracy").ours == pytest.approx(right)
        assert row.value("certified").n == len(of) == 3
    said = published.find(
        published.section("F7").values,
        data="cifar10",
        defense="prd:size=2,codes=25",
        measure="certified",
        x=8,
    )
    assert part.rows[-1].value("certified").paper == said.value


def test_one_of_two_studies_is_not_all_of_a_part(tmp_path: Path) -> None:
    plan = planned(small(CERTIFIED, id="F7", shows="curves"), tmp_path)
    first, study = next(iter(plan.studies.items()))
    LocalExecutor().run(study, first)
    folder = tmp_path / "F7"
    (folder / "experiment.json").write_text(json.dumps(to_plain(plan.manifest())))
    summary = summarise_folder(folder)
    assert summary.parts[0].status == "partial"
    assert summary.complete is False


@pytest.fixture
def bundled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A small F4 in place of the paper's, with F6a and F9 as views of it."""
    home = tmp_path / "paper"
    home.mkdir()
    views = {"F6a": "tradeoff", "F9": "gap"}
    (home / "F4.toml").write_text(text_of(CURVES, id="F4", shows="curves"))
    for id, kind in views.items():
        view = f'\n[[parts]]\nkind = "{kind}"\nof = "F4"\n'
        (home / f"{id}.toml").write_text(text_of(view, id=id, shows="curves"))
    monkeypatch.setattr(experiments, "_bundled", lambda id: home / f"{id}.toml")


@pytest.mark.usefixtures("bundled")
@pytest.mark.parametrize("first", ["F4", "F9"])
def test_views_use_the_records_of_the_other_experiment(
    tmp_path: Path, attacks: list[int], first: str
) -> None:
    out = tmp_path / "out"
    planned(experiment(first), out).run()
    written = records(out)
    assert list(written) == ["F4/few/protocol/records.jsonl"]
    attacks.clear()
    for id in ("F4", "F6a", "F9"):
        planned(experiment(id), out).run()
    assert attacks == []
    assert records(out) == written
    curves, tradeoff, gap = (summarise_folder(out / id).parts[0] for id in ("F4", "F6a", "F9"))
    assert [each.status for each in (curves, tradeoff, gap)] == ["complete"] * 3
    assert tradeoff.tradeoff is True
    assert [row.value("natural").ours for row in tradeoff.rows] == [
        row.value("natural").ours for row in curves.rows
    ]
    for row, other in zip(gap.rows, curves.rows, strict=True):
        natural, robust = (other.value(key).ours for key in ("natural", "autoattack"))
        assert row.value("gap").ours == pytest.approx(natural - robust)
    assert [row.value("gap").paper for row in gap.rows] == [0.0442, 0.0785]
