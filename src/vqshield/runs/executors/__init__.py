"""Executors: where the cells of work are measured. Whichever it is, the records are the same.

A new executor is a new file with an Executor subclass and one line in _EXECUTORS.
"""

from dataclasses import fields
from typing import Any

from vqshield import checks
from vqshield.runs.executors.base import Executor, Measured
from vqshield.runs.executors.local import LocalExecutor
from vqshield.runs.executors.processes import ProcessesExecutor
from vqshield.runs.executors.ray import RayExecutor
from vqshield.settings import refuse_unknown

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
    return [field.name for field in fields(chosen)]  # type: ignore[arg-type]


def executor(name: str, **options: Any) -> Executor:
    """An executor by its name; an unknown name or option is answered with the known ones."""
    refuse_unknown(name, options, executor_options(name))
    return _EXECUTORS[name](**options)


__all__ = [
    "Executor",
    "LocalExecutor",
    "Measured",
    "ProcessesExecutor",
    "RayExecutor",
    "executor",
    "executor_options",
    "list_executors",
]
