"""Options that say where cells are measured, and the executor that they make."""

from typing import Annotated, Any

import typer

from vqshield.core.devices import pick_device
from vqshield.core.errors import InvalidInputError
from vqshield.runs.executors import Executor, executor_options, list_executors
from vqshield.runs.executors import executor as create_executor

_WORKERS_ON_A_GPU = 4  # one alone leaves it waiting for its next command

ExecutorName = Annotated[
    str,
    typer.Option(
        "--executor",
        help="Where cells are measured: local (this process), processes (several of this machine), "
        "ray (a cluster).",
    ),
]
Workers = Annotated[
    int | None,
    typer.Option(
        help="Processes for --executor processes; without it, as many as there are CPUs for, "
        f"{_WORKERS_ON_A_GPU} on a GPU."
    ),
]
Address = Annotated[str | None, typer.Option(help="Of a Ray cluster, for --executor ray.")]
TaskCpus = Annotated[
    int | None,
    typer.Option(help="CPUs a process or Ray task takes, and threads it has; without it, 1."),
]
TaskGpus = Annotated[
    float | None,
    typer.Option(help="GPUs a Ray task takes (a half: two tasks on one); without it, 1 where there is one."),
]
Retries = Annotated[
    int | None,
    typer.Option(help="How often a cell whose process or Ray task was lost is begun again; without it, 3."),
]


_FLAGS = {
    "workers": "--workers",
    "address": "--address",
    "cpus": "--task-cpus",
    "gpus": "--task-gpus",
    "retries": "--retries",
}


def executor_for(name: str, *, device: str, here: bool = False, **given: Any) -> Executor | None:
    """The executor for a command's device; None for local, which needs none.

    here: whether the command computes in this process as well, which then needs the device, too.
    """
    if name == "ray" and not here:  # the device is chosen where the tasks run
        on_gpu = None if device == "auto" else device.startswith("cuda")
    else:
        on_gpu = pick_device(device).type == "cuda"
    chosen = chosen_executor(name, on_gpu=on_gpu, **given)
    return None if name == "local" else chosen


def chosen_executor(name: str, *, on_gpu: bool | None, **given: Any) -> Executor:
    """An executor with the options that were typed; one that it does not have is answered with who has it.

    on_gpu: whether the work needs a GPU; None: where the executor has any.
    """
    known = executor_options(name)
    options = {option: value for option, value in given.items() if value is not None}
    strange = [_FLAGS[option] for option in options if option not in known]
    if strange:
        others = [each for each in list_executors() if set(options) <= set(executor_options(each))]
        raise InvalidInputError(
            f"{', '.join(strange)} given for --executor {name}, which has no such option; it has "
            + (", ".join(flag for option, flag in _FLAGS.items() if option in known) or "none")
            + (f"; choose --executor {' or '.join(others)} for that" if others else "")
        )
    if on_gpu and name == "processes":
        options.setdefault("workers", _WORKERS_ON_A_GPU)
    if on_gpu is not False and name == "ray":
        options.setdefault("gpus", 1.0 if on_gpu else None)
    return create_executor(name, **options)
