"""The state of a run between two epochs, in one safetensors file that is whole or absent."""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vqshield.core.errors import FileFormatError, InvalidInputError
from vqshield.core.files import parse_json, write_atomically
from vqshield.core.serialization import from_plain
from vqshield.core.tensors import read_tensors, tensors_to_bytes
from vqshield.training.progress import EpochRecord

PARTS = ("weights", "optimizer", "ema")
NOTHING = 0.25  # seconds; who writes a checkpoint as fast as this may write one every epoch
SHARE = 0.05  # otherwise: the largest part of a run's time that goes into writing checkpoints


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """Tensors by part ("weights", "optimizer", "ema") and name, and the record of the epochs so far.

    data_sha256 is that of the images and labels: other data under the same name is another run.
    threads: how many torch computed with on a CPU, where another number ends with other weights; None on a
    GPU, and in checkpoints of earlier versions.
    """

    tensors: dict[str, dict[str, Tensor]]
    settings: dict[str, Any]
    data_sha256: str
    history: tuple[EpochRecord, ...]
    threads: int | None = None


@dataclass(frozen=True, kw_only=True)
class History:
    """The epochs so far and the threads that computed them, as the file holds them."""

    history: tuple[EpochRecord, ...]
    threads: int | None = None


class Pace:
    """When a checkpoint is due: after every epoch, unless writing takes long beside an epoch.

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


def write_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    """Write the file, replacing the last one at once."""
    flat = {  # copies: layers may share a tensor, which safetensors does not store
        f"{part}/{name}": tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
        for part, tensors in checkpoint.tensors.items()
        for name, tensor in tensors.items()
    }
    record = {
        "settings": checkpoint.settings,
        "data_sha256": checkpoint.data_sha256,
        "history": [asdict(epoch) for epoch in checkpoint.history],
        "threads": checkpoint.threads,
    }
    write_atomically(path, tensors_to_bytes(flat, {"checkpoint": json.dumps(record)}))


def read_checkpoint(path: Path) -> Checkpoint:
    """Read the file back, exactly."""
    flat, metadata = read_tensors(path)
    tensors: dict[str, dict[str, Tensor]] = {part: {} for part in PARTS}
    try:
        record = parse_json(metadata["checkpoint"], path)
        for key, tensor in flat.items():
            part, name = key.split("/", 1)
            tensors[part][name] = tensor
        held = {"history": record["history"], "threads": record.get("threads")}
        epochs = from_plain(History, held, str(path))
        return Checkpoint(
            tensors=tensors,
            settings=dict(record["settings"]),
            data_sha256=record["data_sha256"],
            history=epochs.history,
            threads=epochs.threads,
        )
    except FileFormatError:
        raise
    except (KeyError, ValueError, TypeError) as error:
        raise FileFormatError(f"{path} is not a checkpoint of vqshield: {error!r}") from error


def check_same_run(
    checkpoint: Checkpoint, *, settings: dict[str, Any], data_sha256: str, threads: int | None
) -> None:
    """Raise where the checkpoint is of another run, naming what differs; threads: None where none matter."""
    for name in sorted(settings.keys() | checkpoint.settings.keys()):
        old, new = checkpoint.settings.get(name), settings.get(name)
        if old != new:
            raise InvalidInputError(
                f"the checkpoint was made with {name}={old!r}, this run has {name}={new!r}; "
                "resume with the old value, or start over without resuming"
            )
    if checkpoint.data_sha256 != data_sha256:
        raise InvalidInputError(
            f"the checkpoint was made on data with sha256 {checkpoint.data_sha256}, "
            f"this run's have {data_sha256}; resume with the old data, or start over without resuming"
        )
    made, unfinished = checkpoint.threads, len(checkpoint.history) < settings["epochs"]
    if unfinished and None not in (made, threads) and made != threads:
        raise InvalidInputError(
            f"the checkpoint was made with {made} threads, this run has {threads} and would end with other "
            f"weights; resume with OMP_NUM_THREADS={made} in the environment, or start over without resuming"
        )
