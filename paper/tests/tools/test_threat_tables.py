"""docs/threats.md shows what was measured, says who kept most, and nothing of what is not there yet."""

import json
from pathlib import Path

import pytest

import corruptions
import recorded
import threat_tables
from harden_frontier import SWRD_25, Row, Rung, Subject, twins
from vqshield.core.serialization import to_plain
from vqshield.ladders.settings import LadderSettings
from vqshield.ladders.study import LadderRow, LadderSummary, Plan
from vqshield.ladders.study import Subject as LadderSubject
from vqshield_paper.corruptions import list_corruptions

MACHINE = {"device": "a device", "torch": "2"}
HEADING = {"data": {"images": 500}, "classifier": {"name": "net.safetensors"}}


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(recorded, "RESULTS", tmp_path)
    return tmp_path


def rung(subject: str, name: str, mean: float, calls: int | None = None, n: int = 1000) -> LadderRow:
    return LadderRow(
        subject=subject, rung=name, calls=calls, used=None, mean=mean, std=0.0, standard_error=0.01, tries=(),
        runs=10, n=n, attacks=("adaptive-v1/soft-margin",), seconds=1.0,
    )  # fmt: skip


def write_ladder(folder: Path, *rows: LadderRow) -> None:
    subjects = (
        LadderSubject(name="model", classifier="tuned.safetensors", defense="swrd:size=3,codes=25"),
        LadderSubject(name="adversarial", classifier="adversarial.safetensors", defense="none"),
        LadderSubject(name="bare", classifier="bare.safetensors", defense="none"),
    )
    plan = Plan(subjects=subjects, settings=LadderSettings(), not_measured=(), training_seconds={})
    summary = LadderSummary(
        title="", complete=True, tries=(), rows=rows, audit="not run", data="cifar10", images=1000,
        machine=MACHINE, plan=plan,
    )  # fmt: skip
    path = folder / threat_tables.LADDER
    path.parent.mkdir()
    path.write_text(json.dumps(to_plain(summary)))


def hardened(subject: Subject, natural: float, adaptive: float) -> Row:
    rungs = {
        name: Rung(mean=mean, std=0.0, standard_error=0.01, vote=mean, runs=10, n=300, seconds=1.0)
        for name, mean in (("natural", natural), ("adaptive", adaptive))
    }
    return Row(
        subject=subject, weights_sha256="ab", before=0.7, after=0.8, training={"epochs": 4, "nesterov": True},
        training_seconds=50.0, rungs=rungs,
    )  # fmt: skip


def write_hardened(folder: Path, name: str, *rows: Row) -> None:
    heading = {**HEADING, "images": 300, "square_images": 150, "attack_precision": "bf16", "machine": MACHINE}
    (folder / name).write_text(json.dumps(to_plain({**heading, "rows": rows})))


def test_what_is_not_measured_is_not_on_the_page(results: Path) -> None:
    assert [made() for made in threat_tables.THREAT_TABLES.values()] == [""] * 5


def test_the_best_of_each_threat_is_named_with_what_is_not_clearly_worse(results: Path) -> None:
    rows = [
        rung(who, "natural", mean) for who, mean in (("model", 0.9), ("adversarial", 0.78), ("bare", 0.95))
    ]
    rows += [rung("model", "score", 0.88, 100), rung("bare", "score", 0.2, 100)]
    rows += [rung("model", "score", 0.76, 10_000, n=250), rung("adversarial", "score", 0.75, 10_000, n=250)]
    rows += [rung("model", "white-box", 0.04), rung("adversarial", "white-box", 0.4)]
    write_ladder(results, *rows)
    heads, _, natural, score, white, *_, words = threat_tables.threats().splitlines()
    assert heads == ("| attacker | best | swRD and noise, fine-tuned | adversarial training | no defense |")
    assert natural == "| none: clean images |  | 90.0 ± 1.0 | 78.0 ± 1.0 | 95.0 ± 1.0 |"
    assert (
        "(10,000 calls per image) | swRD and noise, fine-tuned and adversarial training | 76.0 ± 1.0 |"
        in score
    )
    assert score.endswith("| – |"), "the bare classifier was asked 100 times only"
    assert "| adversarial training | 4.0 ± 1.0 | 40.0 ± 1.0 | – |" in white
    assert "1,000 images of cifar10, score: 250;" in words
    assert (
        "SwRD and noise, fine-tuned: tuned behind swRD (s=3, k=25); adversarial training: adversarial;"
        in words
    )


def test_the_readme_has_a_line_for_each_main_subject(results: Path) -> None:
    asked = [rung("model", "score", 0.8, 1000), rung("model", "score", 0.7, 10_000)]
    fewer = rung("bare", "score", 0.6, 1000)
    write_ladder(results, rung("model", "natural", 0.9), *asked, fewer, rung("adversarial", "white-box", 0.4))
    text = threat_tables.protected()
    assert "score queries (10,000 calls)" in text
    assert "| no defense | – | – | – | – |" in text, "it was queried 1,000 times"
    assert "| swRD and noise, fine-tuned | 90.0 ± 1.0 | – | 70.0 ± 1.0 | – |" in text
    assert "| adversarial training | – | – | – | 40.0 ± 1.0 |" in text


def test_what_a_card_says_of_all_test_images_is_in_the_caption(results: Path) -> None:
    card = "classifiers/resnet18-cifar10-adversarial.json"
    (results / "classifiers").mkdir()
    (results / card).write_bytes((Path(__file__).parents[2] / "results" / card).read_bytes())
    write_ladder(results, rung("model", "natural", 0.9))
    assert "On all 10,000 test images, one sample each: adversarial training 79.7." in threat_tables.threats()


class TestTwins:
    """Above the line of networks without a shield, or not."""

    @staticmethod
    def write(folder: Path, with_shield: dict[int, tuple[float, float]]) -> None:
        ends = {("8/255", False): (0.78, 0.41), ("5.5/255", False): (0.85, 0.36)}
        rows = []
        for subject in twins():
            shielded, eps = subject.defense != "none", subject.method.split("eps=")[1].split(",")[0]
            if shielded and (eps != "8/255" or subject.seed not in with_shield):
                continue
            rows.append(hardened(subject, *(with_shield[subject.seed] if shielded else ends[eps, False])))
        write_hardened(folder, threat_tables.TWINS, *rows)

    def test_below_the_line_it_is_worse(self, results: Path) -> None:
        self.write(results, {0: (0.815, 0.345), 1: (0.815, 0.355), 2: (0.815, 0.365)})
        text = threat_tables.twins()
        assert "**Adversarial training through the shield is worse than without it.**" in text
        assert text.endswith("Through the shield, ε = 5.5/255 was not trained.")
        assert "−4.0 (seed 0), −3.0 (seed 1), −2.0 (seed 2); mean −3.0 ± 0.6" in text
        assert "| 0 | swRD (s=3, k=25) | 8/255 | 4 | 81.5 ± 1.0 | 34.5 ± 1.0 |" in text

    def test_near_the_line_it_is_not_better(self, results: Path) -> None:
        self.write(results, {0: (0.815, 0.375), 1: (0.815, 0.385), 2: (0.815, 0.395)})
        assert (
            "**Adversarial training through the shield is not better than without it.**"
            in threat_tables.twins()
        )

    def test_above_it_clearly_it_is(self, results: Path) -> None:
        self.write(results, {0: (0.815, 0.405), 1: (0.815, 0.415), 2: (0.815, 0.425)})
        assert (
            "**Adversarial training through the shield is better than without it.**" in threat_tables.twins()
        )

    def test_beyond_the_line_there_is_nothing_to_compare_with(self, results: Path) -> None:
        self.write(results, {0: (0.9, 0.3)})
        assert threat_tables.twins() == ""


def test_the_frontier_has_a_line_for_every_shield(results: Path) -> None:
    subject = Subject(name="tuned", defense="swrd:size=2,codes=15")
    rows = [hardened(subject, 0.92, 0.02), hardened(twins()[0], 0.78, 0.41)]
    write_hardened(results, threat_tables.FRONTIER, *rows)
    text = threat_tables.frontier()
    assert "| swRD (s=2, k=15): natural, 4 epochs | 92.0 | 92.0 | – | – | – | 50 |" in text
    assert "| no defense: adversarial at ε 8/255, 4 epochs | 78.0 |" in text


@pytest.mark.parametrize(
    ("gain", "said"),
    [(0.1, "the classifier gains on average**."), (-0.1, "the classifier loses on average**.")],
)
def test_corruptions_say_whether_a_shield_helps(results: Path, gain: float, said: str) -> None:
    rows = [
        corruptions.Row(
            subject=subject, defense=defense, kind=kind, severity=severity,
            accuracy=0.9 if severity == 0 else accuracy, standard_error=0.01, n=500,
        )
        for subject, defense, accuracy in (("bare", "none", 0.6), ("tuned", SWRD_25, 0.6 + gain))
        for kind, severity in corruptions.conditions()
    ]  # fmt: skip
    record = {**HEADING, "complete": True, "environment": MACHINE, "rows": rows}
    (results / threat_tables.CORRUPTIONS).write_text(json.dumps(to_plain(record)))
    text = threat_tables.corruptions()
    assert said in text
    assert "| bare | 90.0 | 60.0 | 60.0 | 60.0 | 60.0 | 60.0 | 60.0 | +0.0 |" in text
    assert text.count("\n| ") == 2 + 1 + len(list_corruptions())
