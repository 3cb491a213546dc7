"""The one-off scripts of research/ still fit the records they wrote, and all of them are listed."""

import gzip
import importlib
import json
import threading
import time
from multiprocessing.pool import ThreadPool
from pathlib import Path

import pytest

import audit_false_alarms
from vqshield.auditing import TITLES
from vqshield.core.serialization import from_plain, to_plain

ROOT = Path(__file__).resolve().parents[1]
SCRIPTS = sorted(path.stem for path in (ROOT / "research").glob("*.py") if path.stem != "common")


@pytest.mark.parametrize(
    ("script", "record"),
    [
        ("attack_certified_votes", "attack-certified-votes.json"),
        ("audit_fakes", "audit-fakes.json"),
        ("certified_radius", "certified-radius-cifar10-resnet18.json"),
        ("certified_radius", "certified-radius-pilot-cifar10-resnet18.json.gz"),
        ("clustering_quality", "clustering-quality-cifar10.json"),
        ("mnist_background", "mnist-background.json"),
        ("learned_surrogate", "learned-surrogate.json"),
    ],
)
def test_kept_rows_are_read_and_written_alike(script: str, record: str) -> None:
    if script == "clustering_quality":
        pytest.importorskip("sklearn")
    path = ROOT / "results" / record
    text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    rows = json.loads(text)["rows"]
    read = from_plain(tuple[importlib.import_module(script).Row, ...], rows, record)
    assert json.dumps(to_plain(read)) == json.dumps(rows)


def test_every_script_and_its_result_is_listed() -> None:
    readme = (ROOT / "research" / "README.md").read_text()
    for name in SCRIPTS:
        assert f"[{name}.py]({name}.py)" in readme, f"research/README.md does not mention {name}.py"
        text = (ROOT / "research" / f"{name}.py").read_text()
        assert f"python paper/research/{name}.py" in text, f"{name}.py does not say how it is run"
    for word in readme.replace("`", " ").replace(",", " ").split():
        if word.startswith("paper/results/"):
            assert (ROOT.parent / word).exists(), f"research/README.md names {word}, which is not there"


class TestHonestAudits:
    """research/audit_false_alarms.py, which takes a GPU, in all but its audits."""

    def audit(self, **changes: object) -> audit_false_alarms.Audited:
        usual = {"defense": "prd", "images": 20, "seed": 0, "seconds": 1.0, "natural": 0.8, "reported": 0.0}
        outcomes = dict.fromkeys(TITLES, "pass")
        return audit_false_alarms.Audited(**{**usual, "outcomes": outcomes, "alarms": {}, **changes})

    def test_five_models_at_every_size_in_ten_seeds(self) -> None:
        plan = list(audit_false_alarms.plan([20, 50, 200], "adversarial.safetensors"))
        assert len(plan) == len(set(plan)) == 5 * 3 * 10
        assert len({key[:2] for key in plan[:5]}) == 5, "a run that is cut short has every model"

    def test_earlier_audits_are_kept_but_for_other_weights(self, tmp_path: Path) -> None:
        path = tmp_path / "audits.json"
        mine = self.audit(classifier="mine.safetensors")
        old = self.audit(seed=1, outcomes={"R1": "pass"})
        written = {"classifiers": {"mine.safetensors": "1"}, "each": [self.audit(), mine, old]}
        path.write_text(json.dumps(to_plain(written)))
        assert audit_false_alarms.kept(path, {}).audits == (self.audit(), mine, old)
        assert audit_false_alarms.kept(path, {"mine.safetensors": "2"}).audits == (self.audit(), old)
        assert [each.is_current for each in (self.audit(), old)] == [True, False]
        assert audit_false_alarms.kept(tmp_path / "none.json", {}).audits == ()

    def test_what_is_ready_is_taken_until_the_deadline(self) -> None:
        with ThreadPool(1) as pool:
            never = threading.Event()
            jobs = [pool.apply_async(lambda seed=seed: self.audit(seed=seed)) for seed in range(3)]
            jobs.append(pool.apply_async(never.wait))
            for job in jobs[:3]:
                job.wait()
            found = list(audit_false_alarms.as_they_come(jobs, time.monotonic() + 0.3))
            never.set()
        assert [each.seed for each in found] == [0, 1, 2]

    def test_at_most_two_recorded_audits_in_a_hundred_raise_an_alarm(self) -> None:
        path = ROOT / "results" / "false-alarms-audit.json"
        found = [each for each in audit_false_alarms.kept(path, {}).audits if each.is_current]
        assert sum(bool(each.alarms) for each in found) <= 0.02 * len(found)
