"""Do the attack libraries' own tests pass with a shielded model in place of theirs?

    git clone https://github.com/Harry24k/adversarial-attacks-pytorch
    git clone https://github.com/bethgelab/foolbox
    python benchmarks/peer_suites.py --torchattacks adversarial-attacks-pytorch --foolbox foolbox

Runs the tests of each source tree with the bare model and with the shielded one (peer_models.py says what
stands in for what). What passes with the bare model and not with the shielded one is tried again with the
settings that such attacks may need; those are noted. Either library may be left out, and keeps its row in
benchmarks/results/peer-suites.json.
"""

import argparse
import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from xml.etree import ElementTree

from vqshield.core.environment import environment
from vqshield.core.files import write_json
from vqshield.core.serialization import to_plain

ROOT = Path(__file__).resolve().parents[1]
NEEDS = ("range=clamp", "streams=content", "range=clamp,streams=content")
OUTSIDE = "images contain"  # in the error about a value out of [0, 1]
PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"


@dataclass(frozen=True, kw_only=True)
class Suite:
    """How one library's tests are run."""

    library: str
    version: tuple[str, str]  # a file of the source tree, and the pattern that finds its version there
    tests: tuple[str, ...]
    options: tuple[str, ...] = ()


SUITES = (
    Suite(
        library="torchattacks",
        version=("torchattacks/__init__.py", r'__version__ = "(.+?)"'),
        tests=("code_coverage/test_atks.py",),
    ),
    Suite(
        library="foolbox",
        version=("foolbox/VERSION", r"(\S+)"),
        tests=(
            "tests/test_attacks.py", "tests/test_attacks_base.py", "tests/test_attacks_raise.py",
            "tests/test_binarization_attack.py", "tests/test_dataset_attack.py", "tests/test_eot_wrapper.py",
            "tests/test_fast_minimum_norm_attack.py", "tests/test_pointwise_attack.py",
            "tests/test_spatial_attack.py",
        ),
        options=("--backend", "pytorch", "--skipslow"),
    ),
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Test:
    """What became of one test."""

    name: str
    outcome: str
    error: str = ""


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A test that passes with the bare model, and needs more of the shielded one than its defaults."""

    test: str
    error: str  # with the defaults
    passes_with: str  # settings of the defense; empty: with none that was tried


@dataclass(frozen=True, kw_only=True)
class Row:
    """The tests of one library."""

    library: str
    version: str
    commit: str
    bare_passed: int
    bare_failed: tuple[Test, ...]
    skipped: int
    shielded_passed: int  # of those that pass with the bare model, with the defaults
    differences: tuple[Difference, ...]


def run(suite: Suite, source: Path, shield: str, tests: Sequence[str]) -> dict[str, Test]:
    """Every test by its name."""
    paths = [str(ROOT / "src"), str(ROOT / "benchmarks"), str(source)]
    with TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        subprocess.run(
            [
                sys.executable, "-m", "pytest", "-q", "-p", "peer_models", "-p", "no:cacheprovider",
                "-o", "addopts=", "-o", "junit_logging=system-out", "--rootdir", ".",
                f"--junitxml={report}", *suite.options, *tests,
            ],
            check=False, cwd=source, stdout=subprocess.DEVNULL,
            env={
                **os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONDONTWRITEBYTECODE": "1",
                "PEER": suite.library, "IN_PLACE": shield,
            },
        )  # fmt: skip
        return outcomes(report.read_text())


def outcomes(report: str) -> dict[str, Test]:
    """The tests of a JUnit report, by the names that pytest takes."""
    found = {}
    for case in ElementTree.fromstring(report).iter("testcase"):
        file = case.attrib["classname"].replace(".", "/") + ".py"
        name = f"{file}::{case.attrib['name']}"
        wrong = [each for each in case if each.tag in ("failure", "error")]
        skipped = any(each.tag == "skipped" for each in case)
        outcome = FAILED if wrong else SKIPPED if skipped else PASSED
        found[name] = Test(name=name, outcome=outcome, error=_first_line(case, wrong[0]) if wrong else "")
    return found


def _first_line(case: ElementTree.Element, wrong: ElementTree.Element) -> str:
    # torchattacks' test catches every error and prints it; what pytest sees is an accuracy that is wrong.
    printed = re.search(r"test acc Error\n(.+)", case.findtext("system-out") or "")
    message = printed[1] if printed else wrong.attrib.get("message", "").strip().splitlines()[0]
    return message[:200]


def settings_needed(missing: Sequence[Test], tried: Mapping[str, Mapping[str, Test]]) -> list[Difference]:
    """The first settings that each test passes with."""
    return [
        Difference(
            test=each.name,
            error=each.error,
            passes_with=next(
                (with_ for with_, found in tried.items() if _passes(found, each.name)), ""
            ),
        )
        for each in missing
    ]  # fmt: skip


def _passes(found: Mapping[str, Test], name: str) -> bool:
    return name in found and found[name].outcome == PASSED


def compare(suite: Suite, source: Path, defense: str) -> Row:
    bare = run(suite, source, "", suite.tests)
    good = [name for name, test in bare.items() if test.outcome == PASSED]
    print(f"{suite.library}: {len(good)} of {len(bare)} pass with the bare model", flush=True)
    shielded = run(suite, source, defense, suite.tests)
    missing = [shielded[name] for name in good if not _passes(shielded, name)]
    print(f"{suite.library}: {len(missing)} of them need settings", flush=True)
    tried: dict[str, dict[str, Test]] = {}
    for settings in NEEDS:
        left = [
            each.name
            for each in missing
            if not any(_passes(found, each.name) for found in tried.values())
            # What fails for another reason may pass with other draws, which says nothing of the setting.
            and (OUTSIDE in each.error or settings != NEEDS[0])
        ]
        if left:
            tried[settings] = run(suite, source, f"{defense},{settings}", left)
    where, pattern = suite.version
    version = re.search(pattern, (source / where).read_text())
    assert version is not None, f"{where} names no version"
    counts = Counter(test.outcome for test in bare.values())
    return Row(
        library=suite.library,
        version=version[1],
        commit=_commit(source),
        bare_passed=len(good),
        bare_failed=tuple(test for test in bare.values() if test.outcome == FAILED),
        skipped=counts[SKIPPED],
        shielded_passed=len(good) - len(missing),
        differences=tuple(settings_needed(missing, tried)),
    )


def _commit(source: Path) -> str:
    asked = subprocess.run(
        ["git", "-C", str(source), "rev-parse", "HEAD"], check=False, capture_output=True, text=True
    )
    return asked.stdout.strip()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for suite in SUITES:
        parser.add_argument(f"--{suite.library}", type=Path, help="its source tree")
    parser.add_argument("--defense", default="prd:size=2,codes=25", help="in front of the models")
    parser.add_argument("--results", type=Path, default=ROOT / "benchmarks" / "results")
    options = parser.parse_args()
    chosen = [(suite, getattr(options, suite.library)) for suite in SUITES]
    if not any(source for _, source in chosen):
        parser.error("--torchattacks or --foolbox is missing: the folder of its source")
    for suite, source in chosen:
        if source is not None:
            keep(compare(suite, source.resolve(), options.defense), options.defense, options.results)


def keep(row: Row, defense: str, results: Path) -> None:
    """Put a library's row into the record; those of other libraries behind the same defense stay."""
    path, used = results / "peer-suites.json", environment()
    rows = [to_plain(row)]
    if path.is_file():
        before = json.loads(path.read_text())
        if (before["defense"], before["environment"]) == (defense, used):
            rows += [each for each in before["rows"] if each["library"] != row.library]
    record = {
        "what": "attack libraries' own tests with a shielded model in place of theirs",
        "defense": defense, "environment": used,
        "rows": sorted(rows, key=lambda each: each["library"], reverse=True),
    }  # fmt: skip
    write_json(path, record)


if __name__ == "__main__":
    main()
