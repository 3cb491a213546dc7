"""What executors for other processes share: what a worker is told, what it does with it, what it answers.

A worker is given a recipe and the number of a cell, both small. It makes the work itself, and makes sure that
it is the work that was begun.
"""

import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from vqshield.errors import InvalidInputError, VqshieldError
from vqshield.runs.executors.base import Measured, measure
from vqshield.runs.study import Recipe, Work

_ALIKE = ("vqshield", "torch", "device")  # what should not differ between machines that share records


@dataclass(frozen=True, kw_only=True)
class Request:
    """What a worker makes the work from; identity: as JSON, what it must then find."""

    recipe: Recipe
    folder: Path
    identity: str


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """An error of ours on its way home: as it was, without anybody's wrapping."""

    kind: type[VqshieldError]
    message: str

    def error(self) -> VqshieldError:
        """The error; made without its constructor, which may want other things than the message."""
        return self.kind.__new__(self.kind, self.message)


def needed_recipe(work: Work[Any, Any], recipe: Recipe | None) -> Recipe:
    """The recipe; work that has none can only be measured here."""
    if recipe is None:
        raise InvalidInputError(
            f"{type(work).__name__} was made without a recipe, which other processes need for making it; "
            "make it with vqshield.runs.jobs.Job, or measure it with the executor local"
        )
    return recipe


def request_for(work: Work[Any, Any], recipe: Recipe) -> Request:
    """What workers are told of this work."""
    return Request(recipe=recipe, folder=work.records.folder.absolute(), identity=_identity(work))


def with_threads(specification: dict[str, Any], threads: int) -> dict[str, Any]:
    """With the threads that workers compute with, which are not those of this process."""
    return {**specification, "machine": {**specification["machine"], "threads": threads}}


def answer(request: Request, number: int, threads: int) -> Measured[Any] | Refusal:
    """What runs in a worker."""
    torch.set_num_threads(threads)
    try:
        work = rebuilt(request)
        return measure(work, work.cells[number])
    except VqshieldError as error:
        return Refusal(kind=type(error), message=str(error))


@lru_cache(maxsize=1)
def rebuilt(request: Request) -> Work[Any, Any]:
    """The work, made once by each worker; it serves all its cells."""
    work = request.recipe.rebuild(request.folder)
    begun = json.loads(request.identity)
    for name, here in json.loads(_identity(work)).items():
        if here != begun[name]:
            raise InvalidInputError(
                f"a worker found {name}={here!r} where the run began with {name}={begun[name]!r}; "
                "give every node the same files and versions, and devices of one kind"
            )
    return work


def _identity(work: Work[Any, Any]) -> str:
    """What must be the same for all, for the records to be those of the specification."""
    machine = work.specification["machine"]
    return json.dumps({**work.specification, "machine": {name: machine[name] for name in _ALIKE}})
