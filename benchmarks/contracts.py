"""Do the contract tests and the kernels' own tests pass on this machine? CI has no GPU: this records a run.

python benchmarks/contracts.py --select cuda -- -n 8

Writes benchmarks/results/contracts-DEVICE.json; what follows "--" goes to pytest.
"""

import argparse
from collections import Counter
from pathlib import Path

import pytest
import torch

from vqshield.core.environment import environment
from vqshield.core.files import write_json
from vqshield.core.serialization import to_plain
from vqshield_paper.speed.record import ContractsRecord

ROOT = Path(__file__).resolve().parents[1]
TESTS = (
    "tests/contracts/test_defense_contract.py",
    "tests/quantization/kernels/test_gpu.py",
    "tests/surrogates/test_soft_triton.py",
)


class Outcomes:
    """A pytest plugin that counts."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.failed: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Called by pytest after each phase of each test."""
        if report.when == "call" or report.outcome != "passed":
            self.counts[report.outcome] += 1
            if report.failed:
                self.failed.append(report.nodeid)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--select", default="", help="pytest's -k")
    parser.add_argument("--results", type=Path, default=ROOT / "benchmarks" / "results")
    parser.add_argument("pytest", nargs="*")
    options = parser.parse_args()

    device = "cuda" if torch.cuda.is_available() else "cpu"
    outcomes = Outcomes()
    tests = [str(ROOT / test) for test in TESTS]
    chosen = ["-k", options.select] if options.select else []
    code = pytest.main([*tests, *chosen, "-q", "-p", "no:cacheprovider", *options.pytest], [outcomes])
    record = ContractsRecord(
        what=f"the contract tests of the defenses on {device}",
        tests=TESTS,
        select=options.select,
        machine=environment(device),
        exit_code=int(code),
        outcomes=dict(outcomes.counts),
        failed=tuple(outcomes.failed),
    )
    write_json(options.results / f"contracts-{device}.json", to_plain(record))
    raise SystemExit(int(code))


if __name__ == "__main__":
    main()
