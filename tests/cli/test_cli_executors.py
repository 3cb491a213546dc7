"""The options that say where cells are measured, and the executors that they make."""

import pytest
import torch

from vqshield.cli.executors import ExecutorOptions
from vqshield.core.errors import InvalidInputError
from vqshield.runs.executors import Executor, LocalExecutor
from vqshield.runs.executors.processes import ProcessesExecutor
from vqshield.runs.executors.ray import RayExecutor


@pytest.mark.parametrize(
    ("name", "on_gpu", "given", "expected"),
    [
        ("local", True, {}, LocalExecutor()),
        ("processes", False, {"task_cpus": 2}, ProcessesExecutor(cpus=2)),
        ("processes", True, {"workers": None}, ProcessesExecutor(workers=4)),
        ("processes", True, {"workers": 2}, ProcessesExecutor(workers=2)),
        ("ray", True, {"address": None}, RayExecutor(gpus=1.0)),
        ("ray", False, {"task_gpus": 0.5}, RayExecutor(gpus=0.5)),
        ("ray", None, {}, RayExecutor(gpus=None)),
    ],
)
def test_what_an_executor_is_given(name: str, on_gpu: bool | None, given: dict, expected: Executor) -> None:
    assert ExecutorOptions(executor=name, **given).create_for(on_gpu=on_gpu) == expected


@pytest.mark.parametrize(
    ("device", "gpus"), [("cuda", 1.0), ("cuda:1", 1.0), ("auto", None), ("cpu", 0), ("abacus", 0)]
)
def test_ray_chooses_the_device_where_its_tasks_run(device: str, gpus: float | None, monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    options = ExecutorOptions(executor="ray")
    assert options.create(device) == RayExecutor(gpus=gpus)
    with pytest.raises(InvalidInputError, match=r"device='cuda:9' cannot be used"):
        options.create("cuda:9", here=True)
