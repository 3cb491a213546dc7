"""Options that say where cells are measured, and the executor that they make."""

from dataclasses import dataclass

from vqshield.core.environment import pick_device
from vqshield.core.errors import InvalidInputError
from vqshield.runs.executors import Executor, executor_options, list_executors
from vqshield.runs.executors import executor as create_executor

_WORKERS_ON_A_GPU = 4  # one alone leaves it waiting for its next command
_FIELDS = {"workers": "workers", "address": "address", "cpus": "task_cpus", "gpus": "task_gpus",
           "retries": "retries"}  # fmt: skip
"""The options of executors, and the fields that hold them."""


@dataclass(frozen=True, kw_only=True)
class ExecutorOptions:
    """Where a command's cells run.

    Attributes:
        executor: where the work runs: local (this process), processes (this machine), ray (a cluster).
        workers: processes for --executor processes (default: one per --task-cpus CPUs, 4 on a GPU).
        address: address of a Ray cluster, for --executor ray.
        task_cpus: CPUs per process or Ray task, which are also its threads (default: 1).
        task_gpus: GPUs per Ray task, where 0.5 means two tasks on one GPU (default: 1 where there is one).
        retries: repeat work at most N times if its process or Ray task died (default: 3).
    """

    executor: str = "local"
    workers: int | None = None
    address: str | None = None
    task_cpus: int | None = None
    task_gpus: float | None = None
    retries: int | None = None

    def create(self, device: str, *, here: bool = False) -> Executor | None:
        """The executor for a command's device; None for local, which needs none.

        here: whether the command computes in this process as well, which then needs the device, too.
        """
        if self.executor == "ray" and not here:  # the device is chosen where the tasks run
            on_gpu = None if device == "auto" else device.startswith("cuda")
        else:
            on_gpu = pick_device(device).type == "cuda"
        executor = self.create_for(on_gpu=on_gpu)
        return None if self.executor == "local" else executor

    def create_for(self, *, on_gpu: bool | None) -> Executor:
        """The executor; on_gpu: whether the work needs a GPU, None: where the executor has any."""
        known = executor_options(self.executor)
        held = {name: getattr(self, field) for name, field in _FIELDS.items()}
        options = {name: value for name, value in held.items() if value is not None}
        flags = {name: f"--{field.replace('_', '-')}" for name, field in _FIELDS.items()}
        if strange := [flags[name] for name in options if name not in known]:
            others = [name for name in list_executors() if set(options) <= set(executor_options(name))]
            has = ", ".join(flag for name, flag in flags.items() if name in known) or "none"
            raise InvalidInputError(
                f"{', '.join(strange)} given for --executor {self.executor}, which has no such option; "
                f"it has {has}" + (f"; choose --executor {' or '.join(others)} for that" if others else "")
            )
        if on_gpu and self.executor == "processes":
            options.setdefault("workers", _WORKERS_ON_A_GPU)
        if on_gpu is not False and self.executor == "ray":
            options.setdefault("gpus", 1.0 if on_gpu else None)
        return create_executor(self.executor, **options)
