"""What executors for other processes share: what a worker is told, what it does with it, what it answers.

A worker is given a study and the number of a cell, both small. It loads what the study names, and makes sure
that this is what the run began with.
"""

import json
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch

from vqshield.core.errors import InvalidInputError, VqshieldError
from vqshield.core.serialization import to_plain
from vqshield.runs.executors.base import Measured, measure
from vqshield.runs.study import Study

_ALIKE = ("vqshield", "torch", "device")  # what should not differ between machines that share records


@dataclass(frozen=True, kw_only=True)
class Request:
    """What a worker measures; identity: as JSON, what the study must come to on its machine."""

    study: Study[Any, Any, Any]
    identity: str


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """A VqshieldError on its way to the process that asked: the same error there, with the same message."""

    kind: type[VqshieldError]
    message: str

    def error(self) -> VqshieldError:
        """The error; made without its constructor, which may want other things than the message."""
        return self.kind.__new__(self.kind, self.message)


def request_for(study: Study[Any, Any, Any]) -> Request:
    """What workers are told of a study."""
    return Request(study=study, identity=_identity(study))


def manifest_for(study: Study[Any, Any, Any], threads: int) -> Any:
    """A study's manifest with the threads that workers compute with, which are not those of this process.

    A study that cannot travel is refused here, before anything is written.
    """
    if not study.travels:
        raise InvalidInputError(
            f"{type(study).__name__} has a classifier in memory, which other processes cannot load; give it "
            "as a file or as module:function, or use the executor local"
        )
    return replace(study.manifest, machine={**study.manifest.machine, "threads": threads})


def answer(request: Request, number: int, threads: int) -> Measured[Any] | Refusal:
    """What runs in a worker."""
    torch.set_num_threads(threads)
    try:
        study = checked(request)
        return measure(study, study.cells[number])
    except VqshieldError as error:
        return Refusal(kind=type(error), message=str(error))


@lru_cache(maxsize=1)
def checked(request: Request) -> Study[Any, Any, Any]:
    """The study, loaded once by each worker; it serves all its cells."""
    begun = json.loads(request.identity)
    for name, here in json.loads(_identity(request.study)).items():
        if here != begun[name]:
            raise InvalidInputError(
                f"a worker found {name}={here!r} where the run began with {name}={begun[name]!r}; "
                "give every node the same files and versions, and devices of one kind"
            )
    return request.study


def _identity(study: Study[Any, Any, Any]) -> str:
    """What must be the same everywhere, for the records to be those of the manifest."""
    plain = to_plain(study.manifest)
    return json.dumps({**plain, "machine": {name: plain["machine"][name] for name in _ALIKE}})
