import multiprocessing
import signal
from pathlib import Path

import pytest
import torch
from hypothesis import settings
from torch import Tensor

import vqshield as vq

# Derandomised: a run of the suite says the same thing every time, on every machine.
settings.register_profile("suite", deadline=None, derandomize=True, max_examples=25)
settings.load_profile("suite")

# A suite that was started in the background ignores Ctrl-C, and so would all its children: tests send it.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Where a mistake costs most: `make check` runs the tests of these folders that are not slow.
CHECKED = (
    "contracts", "core", "quantization", "defenses", "surrogates", "models", "certificates", "runs",
    "evaluation", "certification", "ladders", "leaderboards", "test_defended",
)  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    tests = Path(__file__).parent / "tests"
    for item in items:
        folder = (
            item.path.relative_to(tests).parts[0].removesuffix(".py") if tests in item.path.parents else ""
        )
        if folder in CHECKED and item.get_closest_marker("slow") is None:
            item.add_marker("check")


SHARED = Path(__file__).resolve().parents[1] / "shared"


@pytest.fixture
def shared() -> Path:
    """Real data and weights, where they lie beside the checkout."""
    if not (SHARED / "weights").is_dir():
        pytest.skip("no folder 'shared' with data and weights beside the checkout")
    return SHARED


@pytest.fixture(scope="session")
def natural() -> Tensor:
    """64 CIFAR-10 test images from the bundled sample."""
    from vqshield.data import sample

    return sample(64).floats()


def noise_images(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(params=vq.list_defenses())
def defense_name(request: pytest.FixtureRequest) -> str:
    """Every registered defense in turn."""
    return request.param


@pytest.fixture
def quick_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers that are forked off a process that has imported torch once, instead of importing it each."""
    from vqshield.runs.executors import processes

    if "forkserver" in multiprocessing.get_all_start_methods():
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["vqshield.evaluation.study"])
        monkeypatch.setattr(processes, "_SPAWN", context)
