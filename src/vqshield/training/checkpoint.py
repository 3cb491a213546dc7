"""The state of a run between two epochs, in one safetensors file that is whole or absent."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from vqshield.errors import FileFormatError, InvalidInputError
from vqshield.files import write_atomically
from vqshield.training.progress import EpochRecord

PARTS = ("weights", "momentum", "ema")


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """Tensors by part ("weights", "momentum", "ema") and name, and the record of the epochs so far.

    data_sha256 is that of the images and labels: other data under the same name is another run.
    """

    tensors: dict[str, dict[str, Tensor]]
    settings: dict[str, Any]
    data_sha256: str
    history: tuple[EpochRecord, ...]


def write_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    """Write the file, replacing the last one at once."""
    flat = {
        f"{part}/{name}": tensor.detach().cpu().contiguous()
        for part, tensors in checkpoint.tensors.items()
        for name, tensor in tensors.items()
    }
    record = {
        "settings": checkpoint.settings,
        "data_sha256": checkpoint.data_sha256,
        "history": [asdict(epoch) for epoch in checkpoint.history],
    }
    write_atomically(path, save(flat, {"checkpoint": json.dumps(record)}))


def read_checkpoint(path: Path) -> Checkpoint:
    """Read the file back, exactly."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            flat = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise FileFormatError(f"{path} is not a safetensors file: {error}") from error
    tensors: dict[str, dict[str, Tensor]] = {part: {} for part in PARTS}
    try:
        record = json.loads(metadata["checkpoint"])
        for key, tensor in flat.items():
            part, name = key.split("/", 1)
            tensors[part][name] = tensor
        return Checkpoint(
            tensors=tensors,
            settings=record["settings"],
            data_sha256=record["data_sha256"],
            history=tuple(EpochRecord(**epoch) for epoch in record["history"]),
        )
    except (KeyError, ValueError, TypeError) as error:
        raise FileFormatError(f"{path} is not a checkpoint of vqshield: {error!r}") from error


def check_same_run(checkpoint: Checkpoint, *, settings: dict[str, Any], data_sha256: str) -> None:
    """Raise where the checkpoint is of another run, naming what differs."""
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
