import multiprocessing

import pytest

from vqshield.runs.executors import team


@pytest.fixture
def quick_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers that are forked off a process that has imported torch once, instead of importing it each."""
    if "forkserver" in multiprocessing.get_all_start_methods():
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["vqshield.studies.evaluation"])
        monkeypatch.setattr(team, "_SPAWN", context)
