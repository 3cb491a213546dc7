"""Do the adapters work in the libraries that are installed here?

    python benchmarks/integrations.py

Runs the tests and the example of each adapter, notes the library's version, and looks at the draws of
DataLoader workers. Meant for an environment that has all of the libraries, which CI has not: torchvision
needs a torch of its own kind. Writes benchmarks/results/integrations.json.
"""

import argparse
import hashlib
import subprocess
import sys
from dataclasses import dataclass
from importlib import metadata
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from xml.etree import ElementTree

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from vqshield.core.environment import environment
from vqshield.core.files import write_json
from vqshield.core.serialization import to_plain
from vqshield.integrations.torchvision import ShieldTransform

ROOT = Path(__file__).resolve().parents[1]
TESTS = {  # the package, which tests of tests/integrations/ are about it, and its example
    "adversarial-robustness-toolbox": ("test_art or adapter[art]", "shield_with_art"),
    "torchvision": ("test_torchvision or adapter[torchvision]", "shield_with_torchvision"),
    "kornia": ("kornia", "shield_with_kornia"),
    "albumentations": ("albumentations", "shield_with_albumentations"),
    "transformers": ("transformers", "shield_with_transformers"),
    "timm": ("timm", "shield_with_timm"),
    "lightning": ("lightning", "shield_with_lightning"),
    "onnxruntime": ("test_onnx", "export_to_onnx"),
}
WORKERS, METHODS = (0, 1, 4), ("fork", "spawn")
IMAGES, EPOCHS = 8, 2


@dataclass(frozen=True, kw_only=True)
class Row:
    """The tests of one adapter."""

    library: str
    version: str
    passed: int
    failed: int
    skipped: int
    example_runs: bool


@dataclass(frozen=True, kw_only=True)
class Loader:
    """The draws of a DataLoader whose data set shields the same image again and again."""

    workers: int
    method: str
    repeats_with_a_seed: bool
    differs_without: bool
    all_draws_differ: bool


class SameImage(Dataset[Tensor]):
    """One image, shielded at every look."""

    def __init__(self, seed: int | None) -> None:
        self.transform = ShieldTransform("prd:codes=5", seed=seed)
        self.image = torch.rand(3, 16, 16, generator=torch.Generator().manual_seed(0))

    def __len__(self) -> int:
        return IMAGES

    def __getitem__(self, number: int) -> Tensor:
        found: Tensor = self.transform(self.image)
        return found


def print_draws(workers: int, method: str, seed: int | None) -> None:
    """A line for each image of each epoch, for another process to read."""
    context = method if workers else None
    loader = DataLoader(SameImage(seed), batch_size=1, num_workers=workers, multiprocessing_context=context)
    for _ in range(EPOCHS):
        for image in loader:
            print(hashlib.sha256(image.numpy().tobytes()).hexdigest())


def draws(workers: int, method: str, seed: str) -> list[str]:
    command = [sys.executable, __file__, "--draws", str(workers), method, seed]
    return subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout.split()


def loaders() -> list[Loader]:
    rows = []
    for workers, method in product(WORKERS, METHODS):
        if workers == 0 and method != METHODS[0]:
            continue  # no process is started
        seeded, again, free = (draws(workers, method, seed) for seed in ("5", "5", "none"))
        assert len(seeded) == IMAGES * EPOCHS
        rows.append(
            Loader(
                workers=workers,
                method=method if workers else "",
                repeats_with_a_seed=seeded == again,
                differs_without=not set(seeded) & set(free),
                all_draws_differ=len(set(seeded)) == len(seeded),
            )
        )
        print(rows[-1], flush=True)
    return rows


def tested(library: str) -> Row:
    chosen, example = TESTS[library]
    passed, failed, skipped = outcomes(ROOT / "tests" / "integrations", chosen)
    ran = outcomes(ROOT / "tests" / "examples" / "test_short_examples.py", f"example_runs and {example}")
    return Row(
        library=library,
        version=metadata.version(library),
        passed=passed,
        failed=failed,
        skipped=skipped,
        example_runs=ran == (1, 0, 0),
    )


def outcomes(file: Path, chosen: str) -> tuple[int, int, int]:
    """Tests that passed, failed and were skipped."""
    with TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", str(file), "-k", chosen, f"--junitxml={report}"]
        subprocess.run(command, check=False, cwd=ROOT, capture_output=True)
        (suite,) = ElementTree.parse(report).getroot().iter("testsuite")
    counts = {key: int(suite.attrib[key]) for key in ("tests", "failures", "errors", "skipped")}
    failed = counts["failures"] + counts["errors"]
    return counts["tests"] - failed - counts["skipped"], failed, counts["skipped"]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--draws", nargs=3, metavar=("WORKERS", "METHOD", "SEED"), help=argparse.SUPPRESS)
    parser.add_argument("--results", type=Path, default=ROOT / "benchmarks" / "results")
    options = parser.parse_args()
    if options.draws:
        workers, method, seed = options.draws
        print_draws(int(workers), method, None if seed == "none" else int(seed))
        return
    rows = []
    for library in TESTS:
        rows.append(tested(library))
        print(rows[-1], flush=True)
    record = {
        "what": "the adapters' tests and examples in the libraries themselves; draws of DataLoader workers",
        "environment": environment(), "rows": to_plain(rows), "loaders": to_plain(loaders()),
    }  # fmt: skip
    write_json(options.results / "integrations.json", record)


if __name__ == "__main__":
    main()
