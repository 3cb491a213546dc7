"""The files of a run: weights, the card that describes them, and the checkpoint that it resumes from."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vqshield.classifiers import Network, Normalised, load_classifier, save_classifier
from vqshield.core.environment import environment
from vqshield.core.errors import FileFormatError, InvalidInputError
from vqshield.core.files import parse_json, write_atomically, write_json
from vqshield.core.serialization import Json, from_plain, to_plain
from vqshield.core.tensors import read_tensors, tensors_to_bytes

PARTS = ("weights", "optimizer", "ema")
QUICK = 0.25  # seconds; a checkpoint that is written in this time is written every epoch
SHARE = 0.05  # otherwise: the largest share of a run's time that goes into writing checkpoints

Parts = dict[str, dict[str, Tensor]]
"""Tensors by part ("weights", "optimizer", "ema") and name."""


@dataclass(frozen=True)
class RunFiles:
    """Where a run keeps its files: STEM.safetensors, its card STEM.json, and its checkpoint."""

    folder: Path
    stem: str

    @property
    def weights(self) -> Path:
        return self.folder / f"{self.stem}.safetensors"

    @property
    def card(self) -> Path:
        return self.folder / f"{self.stem}.json"

    @property
    def checkpoint(self) -> Path:
        return self.folder / f"{self.stem}.checkpoint.safetensors"

    def save(self, model: Normalised, metadata: Mapping[str, str]) -> None:
        """Write a `Network` with all that rebuilds it, a network from elsewhere as its weights alone."""
        if isinstance(model.network, Network):
            save_classifier(self.weights, model, metadata)
        else:
            write_atomically(self.weights, tensors_to_bytes(model.network.state_dict(), metadata))

    def saved(self, model: Normalised, device: torch.device) -> Normalised:
        """The model as the file holds it: convolutions of a `Network` are rounded to fp16 there."""
        if not isinstance(model.network, Network):
            return model
        return load_classifier(self.weights, device=device)

    def write_card(
        self,
        model: Normalised,
        facts: Mapping[str, Json],
        *,
        device: torch.device,
        seconds: float,
        history: Sequence[Json] = (),
    ) -> dict[str, Json]:
        """Write the facts, the network, the size of its file, the time, the machine and the epochs."""
        network = model.network
        described: dict[str, Json] = {"arch": type(network).__name__, "options": None}
        if isinstance(network, Network):
            described = {"arch": network.arch, "options": network.options}
        card: dict[str, Json] = {
            **facts,
            "network": described,
            "bytes": self.weights.stat().st_size,
            "seconds": round(seconds, 3),
            **environment(device),
            **({"history": history} if history else {}),
        }
        write_json(self.card, card)
        return card

    def how_to_load(self, source: str, model: Normalised) -> str:
        """What loads the weights of a classifier that came from that source."""
        if isinstance(model.network, Network):
            return str(self.weights)
        source = source.partition("@")[0]
        if ":" in source:
            return f"{source}@{self.weights}"
        return f"load_state_dict of the network of {source}, with the tensors of {self.weights}"


@dataclass(frozen=True, kw_only=True)
class EpochRecord:
    """The result of one epoch; accuracies are fractions."""

    epoch: int  # from 1
    loss: float
    train_accuracy: float
    test_accuracy: float | None  # None: this epoch was not tested
    seconds: float


@dataclass(frozen=True, kw_only=True)
class RunState:
    """Which run this is, and its epochs so far.

    data_sha256: of the images and labels; other data under the same name make another run.
    threads: of torch on a CPU, where another number leads to other weights; None on a GPU, and in checkpoints
        of earlier versions.
    """

    settings: Mapping[str, Any]
    data_sha256: str
    history: tuple[EpochRecord, ...] = ()
    threads: int | None = None


def checkpoint_due(took: float, since: float) -> bool:
    """Whether to write a checkpoint after an epoch, from the seconds that the last took, and those since.

    Always, unless writing is slow: a large network's file has hundreds of megabytes. Then when ``SHARE`` of
    the time since the last covers writing another.
    """
    return took <= QUICK or since >= took / SHARE


def write_checkpoint(path: Path, tensors: Parts, state: RunState) -> None:
    """Replace the checkpoint atomically."""
    flat = {f"{part}/{name}": tensor for part, held in tensors.items() for name, tensor in held.items()}
    write_atomically(path, tensors_to_bytes(flat, {"checkpoint": json.dumps(to_plain(state))}))


def read_checkpoint(path: Path) -> tuple[Parts, RunState]:
    """What ``write_checkpoint`` was given."""
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
                "resume with the old value, or start over (--fresh)"
            )
    if held.data_sha256 != wanted.data_sha256:
        raise InvalidInputError(
            f"the checkpoint was made on data with sha256 {held.data_sha256}, "
            f"this run's have {wanted.data_sha256}; resume with the old data, or start over (--fresh)"
        )
    unfinished = len(held.history) < wanted.settings["epochs"]
    if unfinished and None not in (held.threads, wanted.threads) and held.threads != wanted.threads:
        raise InvalidInputError(
            f"the checkpoint was made with {held.threads} threads, this run has {wanted.threads} and would "
            f"end with other weights; resume with OMP_NUM_THREADS={held.threads} in the environment, or "
            "start over (--fresh)"
        )
