"""Executors: where the cells of a study are measured. Every executor writes the same records.

A new executor is a new file with an Executor subclass and one line in _EXECUTORS.
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from vqshield.core import checks
from vqshield.core.errors import InvalidInputError
from vqshield.core.settings import refuse_unknown, setting_names
from vqshield.runs.records import AnyRecord
from vqshield.runs.study import (
    AnyCell,
    AnyManifest,
    AnyStudy,
    Measured,
    Progress,
    Recorded,
    Study,
    no_progress,
)

_LOG = logging.getLogger("vqshield")
_EXECUTORS = {
    "local": (__name__, "LocalExecutor"),
    "processes": (f"{__name__}.processes", "ProcessesExecutor"),
    "ray": (f"{__name__}.ray", "RayExecutor"),
}
"""Module and class of each executor; the module is imported when the executor is chosen."""


class Executor(ABC):
    """Runs studies: the records are in the order of the cells, whichever cell is finished first."""

    def run(self, study: AnyStudy, folder: Path, *, progress: Progress = no_progress) -> None:
        """Measure what is not measured yet. A finished cell is kept once all cells before it are finished.

        Args:
            study: what to measure.
            folder: folder of the records; an interrupted run resumes there.
            progress: called with what is being done, how much is done, and how much there is.
        """
        manifest = self.manifest(study)
        with study.folder(folder).writing(manifest) as writer:
            first = writer.done
            done = sum(map(study.cost, study.cells[:first]))
            if first == len(study.cells):  # a finished run starts no cluster
                return
            # Closed at once whatever happens, so that a cluster stops when this run does.
            with closing(self.measured(study, first, progress)) as results:
                for cell, result in zip(study.cells[first:], results, strict=True):
                    writer.append(result.records, seconds=result.seconds)
                    title, seconds = study.title(cell), result.seconds
                    _LOG.debug("%s: %d records in %.1f s", title, len(result.records), seconds)
                    done += study.cost(cell)
                    progress(title, done, study.work)

    def manifest(self, study: AnyStudy) -> Any:
        """The settings of the records, as manifest.json holds them."""
        return study.manifest

    @abstractmethod
    def measured(self, study: AnyStudy, first: int, progress: Progress) -> Generator[Measured, None, None]:
        """The cells from number `first` on, in their order; progress inside a cell may be reported."""


@dataclass(frozen=True, kw_only=True)
class LocalExecutor(Executor):
    """Measures cell after cell in this process, and reports progress inside each cell."""

    def measured(self, study: AnyStudy, first: int, progress: Progress) -> Generator[Measured, None, None]:
        return study.measured_here(first, progress)


def list_executors() -> list[str]:
    """The names of the executors."""
    return list(_EXECUTORS)


def executor_options(name: str) -> list[str]:
    """The options of the executor of that name."""
    return setting_names(_executor_class(name))


def executor(name: str, **options: object) -> Executor:
    """An executor by its name; the error for an unknown name or option lists the known ones."""
    refuse_unknown(name, options, executor_options(name))
    return _executor_class(name)(**options)


def _executor_class(name: str) -> type[Executor]:
    module, class_name = _EXECUTORS[checks.one_of("executor", name, _EXECUTORS)]
    kind: type[Executor] = getattr(import_module(module), class_name)
    return kind


def run_study(
    study: Study[AnyManifest, AnyCell, AnyRecord],
    out: Path | str | None,
    *,
    executor: Executor | None = None,
    progress: Progress = no_progress,
) -> Recorded[AnyManifest, AnyRecord]:
    """Measure a study into a folder (out=None: in memory alone) and return all its records."""
    if out is None:
        if executor is not None:
            raise InvalidInputError("an executor is given without a folder for its records; give out as well")
        return study.in_memory(progress)
    (executor or LocalExecutor()).run(study, Path(out), progress=progress)
    return study.read(Path(out))
