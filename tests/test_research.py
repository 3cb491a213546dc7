"""The one-off scripts of research/ still fit the records they wrote, and all of them are listed."""

import gzip
import importlib
import json
from pathlib import Path

import pytest

from vqshield.plain import from_plain, to_plain

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
        assert f"python research/{name}.py" in text, f"{name}.py does not say how it is run"
    for word in readme.replace("`", " ").replace(",", " ").split():
        if word.startswith("results/"):
            assert (ROOT / word).exists(), f"research/README.md names {word}, which is not there"
