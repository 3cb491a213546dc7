"""The state of a run between two epochs, in one safetensors file that is whole or absent."""

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from vqshield.core.errors import FileFormatError, InvalidInputError
from vqshield.core.files import parse_json, write_atomically
from vqshield.core.serialization import from_plain, to_plain
from vqshield.core.tensors import read_tensors, tensors_to_bytes

PARTS = ("weights", "optimizer", "ema")
NOTHING = 0.25  # seconds; who writes a checkpoint as fast as this may write one every epoch
SHARE = 0.05  # otherwise: the largest part of a run's time that goes into writing checkpoints

Parts = dict[str, dict[str, Tensor]]
"""Tensors by part ("weights", "optimizer", "ema") and name."""


@dataclass(frozen=True, kw_only=True)
class EpochRecord:
    """What one epoch gave; accuracies are fractions."""

    epoch: int  # from 1
    loss: float
    train_accuracy: float
    test_accuracy: float | None  # None: this epoch was not tested
    seconds: float


@dataclass(frozen=True, kw_only=True)
class RunState:
    """Which run this is, and its epochs so far.

    data_sha256 is that of the images and labels: other data under the same name is another run.
    threads: how many torch computed with on a CPU, where another number ends with other weights; None on a
    GPU, and in checkpoints of earlier versions.
    """

    settings: Mapping[str, Any]
    data_sha256: str
    history: tuple[EpochRecord, ...] = ()
    threads: int | None = None


class Pace:
    """When a checkpoint is due: after every epoch, unless writing takes long compared with an epoch.

    A large network's file has hundreds of megabytes; written after each of its short epochs, it would cost a
    good part of the run. Then one is due when ``SHARE`` of the time since the last pays for writing another.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock, self.took, self.ended = clock, 0.0, clock()

    @property
    def due(self) -> bool:
        """Is it time for another?"""
        return self.took <= NOTHING or self.clock() - self.ended >= self.took / SHARE

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Around the writing of one: remember how long it took."""
        began = self.clock()
        yield
        self.ended = self.clock()
        self.took = self.ended - began


def write_checkpoint(path: Path, tensors: Parts, state: RunState) -> None:
    """Write the file, replacing the last one at once."""
    flat = {f"{part}/{name}": tensor for part, held in tensors.items() for name, tensor in held.items()}
    write_atomically(path, tensors_to_bytes(flat, {"checkpoint": json.dumps(to_plain(state))}))


def read_checkpoint(path: Path) -> tuple[Parts, RunState]:
    """Read the file back, exactly."""
    flat, metadata = read_tensors(path)
    tensors: Parts = {part: {} for part in PARTS}
    try:
        state = from_plain(RunState, parse_json(metadata["checkpoint"], path), str(path))
        for key, tensor in flat.items():
            part, name = key.split("/", 1)
            tensors[part][name] = tensor
    except FileFormatError:
        raise
    except (KeyError, ValueError) as error:
        raise FileFormatError(f"{path} is not a checkpoint of vqshield: {error!r}") from error
    return tensors, state


def check_same_run(held: RunState, wanted: RunState) -> None:
    """Raise where a checkpoint is of another run, naming what differs."""
    for name in sorted(wanted.settings.keys() | held.settings.keys()):
        old, new = held.settings.get(name), wanted.settings.get(name)
        if old != new:
            raise InvalidInputError(
                f"the checkpoint was made with {name}={old!r}, this run has {name}={new!r}; "
                "resume with the old value, or start over without resuming"
            )
    if held.data_sha256 != wanted.data_sha256:
        raise InvalidInputError(
            f"the checkpoint was made on data with sha256 {held.data_sha256}, "
            f"this run's have {wanted.data_sha256}; resume with the old data, or start over without resuming"
        )
    made, threads = held.threads, wanted.threads
    unfinished = len(held.history) < wanted.settings["epochs"]
    if unfinished and None not in (made, threads) and made != threads:
        raise InvalidInputError(
            f"the checkpoint was made with {made} threads, this run has {threads} and would end with other "
            f"weights; resume with OMP_NUM_THREADS={made} in the environment, or start over without resuming"
        )
