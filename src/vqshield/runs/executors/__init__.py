"""Executors: where the cells of a study are measured. Whichever it is, the records are the same.

A new executor is a new file with an Executor subclass and one line in _EXECUTORS.
"""

from pathlib import Path
from typing import Any

from vqshield.core import checks
from vqshield.core.errors import InvalidInputError
from vqshield.core.settings import refuse_unknown, setting_names
from vqshield.runs.executors.base import Executor, Measured
from vqshield.runs.executors.local import LocalExecutor
from vqshield.runs.executors.processes import ProcessesExecutor
from vqshield.runs.executors.ray import RayExecutor
from vqshield.runs.records import AnyRecord
from vqshield.runs.study import AnyCell, AnyManifest, Progress, Recorded, Study, no_progress

_EXECUTORS: dict[str, type[Executor]] = {
    "local": LocalExecutor,
    "processes": ProcessesExecutor,
    "ray": RayExecutor,
}


def list_executors() -> list[str]:
    """The names of the executors."""
    return list(_EXECUTORS)


def executor_options(name: str) -> list[str]:
    """The options of the executor of that name."""
    chosen = _EXECUTORS[checks.one_of("executor", name, _EXECUTORS)]
    return setting_names(chosen)


def executor(name: str, **options: Any) -> Executor:
    """An executor by its name; an unknown name or option is answered with the known ones."""
    refuse_unknown(name, options, executor_options(name))
    return _EXECUTORS[name](**options)


def run_study(
    study: Study[AnyManifest, AnyCell, AnyRecord],
    out: Path | str | None,
    *,
    executor: Executor | None = None,
    progress: Progress = no_progress,
) -> Recorded[AnyManifest, AnyRecord]:
    """Measure a study into a folder, or only in memory where out is None; then what there is of it."""
    if out is None:
        if executor is not None:
            raise InvalidInputError("an executor is given without a folder for its records; give out as well")
        return study.in_memory(progress)
    (executor or LocalExecutor()).run(study, Path(out), progress=progress)
    return study.read(Path(out))


__all__ = [
    "Executor",
    "LocalExecutor",
    "Measured",
    "ProcessesExecutor",
    "RayExecutor",
    "executor",
    "executor_options",
    "list_executors",
    "run_study",
]
