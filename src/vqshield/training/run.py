"""A whole training run: start or resume, keep checkpoints, write the weights and their card."""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vqshield.classifiers import Network, Normalised, load_classifier, save_classifier
from vqshield.core.checks import whole
from vqshield.core.environment import environment, pick_device
from vqshield.core.errors import FileFormatError, InvalidInputError, VqshieldError
from vqshield.core.files import parse_json, write_atomically, write_json
from vqshield.core.progress import Progress, no_progress
from vqshield.core.serialization import Json, from_plain, to_plain
from vqshield.core.tensors import read_tensors, tensors_to_bytes
from vqshield.data import ImageSet
from vqshield.data.base import digest_of
from vqshield.defenses import Defense
from vqshield.training.settings import TrainSettings
from vqshield.training.trainer import EpochRecord, Parts, Trainer, fast_convolutions

QUICK = 0.25  # seconds; a checkpoint that is written in this time is written every epoch
SHARE = 0.05  # otherwise: the largest share of a run's time that goes into writing checkpoints


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
class RunState:
    """Which run this is, and its epochs so far.

    data_sha256: of the images and labels.
    threads: of torch on a CPU, where another number leads to other weights; None on a GPU, and in checkpoints
        of earlier versions.
    code: a digest of the user's files that make classifier and defense; None: there are none, or an earlier
        version wrote the checkpoint.
    """

    settings: Mapping[str, Any]
    data_sha256: str
    history: tuple[EpochRecord, ...] = ()
    threads: int | None = None
    code: str | None = field(default=None, metadata={"omit": True})


@dataclass(frozen=True, kw_only=True)
class TrainResult:
    """The classifier as the file holds it, the paths of its weights and its card, and the results."""

    model: nn.Module
    weights: Path
    card_file: Path
    settings: TrainSettings
    test_accuracy: float
    test_images: int
    seconds: float
    card: Mapping[str, Json]


def train_on(
    settings: TrainSettings,
    training: ImageSet,
    test: ImageSet,
    *,
    out: str | Path,
    device: str = "cpu",
    fresh: bool = False,
    test_every: int = 1,
    progress: Progress = no_progress,
    trainer: type[Trainer] = Trainer,
    model: Normalised | None = None,
    defense: Defense | None = None,
    notes: Mapping[str, Json] | None = None,
) -> TrainResult:
    """Train; write NAME.safetensors and its card NAME.json into ``out``.

    A checkpoint in ``out`` is continued unless ``fresh``; it must have equal settings and data, and on a CPU
    the same number of threads. A run that stops at any moment, even by kill -9, leaves the checkpoint of a
    whole epoch: the last, or one of the last few where writing is slow. On a CPU, with the same torch and
    processor, a resumed run ends with the weights of an unbroken one.

    Args:
        test_every: epochs between two tests; the last epoch is always tested.
        trainer: a subclass for another recipe.
        model, defense: replace what the settings name.
        notes: further facts for the card.
    """
    whole("test_every", test_every, least=1)
    place, files = pick_device(device), RunFiles(Path(out), settings.name)
    if settings.start is not None and files.weights.exists() and files.weights.samefile(settings.start):
        raise InvalidInputError(
            f"start={Path(settings.start).name!r} is where out={str(files.folder)!r} would get its weights; "
            "give another out"
        )
    state = RunState(
        settings=settings.to_dict(),
        data_sha256=digest_of(training, test),
        threads=torch.get_num_threads() if place.type == "cpu" else None,  # no GPU's results depend on it
        code=settings.code,
    )
    work = trainer(settings, training, test, place, model=model, defense=defense)
    if not fresh and files.checkpoint.is_file():
        tensors, stored = read_checkpoint(files.checkpoint)
        check_same_run(stored, state)
        work.restore(tensors)
        state = replace(state, history=stored.history)
    files.folder.mkdir(parents=True, exist_ok=True)  # a wrong folder fails before the first epoch
    epochs, done, total = settings.epochs, len(state.history), settings.epochs * work.steps
    resumed = f"resumed from the checkpoint after epoch {done} of {epochs}"
    progress(resumed if done else f"{epochs} epochs of {work.steps} steps", done * work.steps, total)

    def report(steps: int, loss: float) -> None:
        """Report the steps of the epoch that runs, with the last test accuracy."""
        tested = [past.test_accuracy for past in state.history if past.test_accuracy is not None]
        accuracy = f"  test {tested[-1]:.2%}" if tested else ""
        progress(
            f"epoch {epoch}/{epochs}  loss {loss:.3f}{accuracy}", (epoch - 1) * work.steps + steps, total
        )

    written, took = time.monotonic(), 0.0  # when the last checkpoint was, and how long it took
    with fast_convolutions():
        for epoch in range(done + 1, epochs + 1):
            record = work.epoch(epoch - 1, report, test=epoch == epochs or epoch % test_every == 0)
            state = replace(state, history=(*state.history, record))
            tensors = work.tensors()
            _check_finite(tensors["weights"], epoch=epoch, peak_lr=settings.peak_lr)
            began = time.monotonic()
            if epoch == epochs or checkpoint_due(took, began - written):
                write_checkpoint(files.checkpoint, tensors, state)
                written = time.monotonic()
                took = written - began
            report(work.steps, record.loss)
    return _finished(work, training, state, files, notes or {})


def _finished(
    work: Trainer, training: ImageSet, state: RunState, files: RunFiles, notes: Mapping[str, Json]
) -> TrainResult:
    settings = work.settings
    metadata = {"data": settings.data, "seed": str(settings.seed)}
    if settings.shield is not None:
        metadata["shield"] = settings.shield  # certifying the file needs the noise that it was trained with
    files.save(work.best, metadata)
    saved = files.saved(work.best, work.device)  # its accuracy is reported, not that before rounding
    accuracy, seconds = work.test_accuracy(saved), sum(epoch.seconds for epoch in state.history)
    facts = {
        "data": settings.data,
        "data_sha256": state.data_sha256,
        "train_images": len(training),
        "test_images": len(work.test_labels),
        "classes": list(training.classes),
        "settings": state.settings,
        "seed": settings.seed,
        "parameters": sum(parameter.numel() for parameter in work.model.parameters()),
        "test_accuracy": accuracy,
        **notes,
    }
    epochs = [asdict(epoch) for epoch in state.history]
    return TrainResult(
        model=saved,
        weights=files.weights,
        card_file=files.card,
        settings=settings,
        test_accuracy=accuracy,
        test_images=len(work.test_labels),
        seconds=round(seconds, 3),
        card=files.write_card(saved, facts, device=work.device, seconds=seconds, history=epochs),
    )


def _check_finite(tensors: Mapping[str, Tensor], *, epoch: int, peak_lr: float) -> None:
    """Raise where weights became nan or infinite, before a checkpoint keeps them: no run could resume."""
    wrong = [name for name, values in tensors.items() if not values.isfinite().all()]
    if wrong:
        raise VqshieldError(
            f"after epoch {epoch} {wrong[0]!r} holds nan or infinity; lower peak_lr={peak_lr} and start over"
        )


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
    tensors: Parts = {part: {} for part in ("weights", "optimizer", "ema")}
    try:
        state = from_plain(RunState, parse_json(metadata["checkpoint"], path), str(path))
        for key, tensor in flat.items():
            part, name = key.split("/", 1)
            tensors[part][name] = tensor
    except FileFormatError:
        raise
    except (KeyError, ValueError) as error:
        raise FileFormatError(f"{path} is not a checkpoint of vqshield: {error!r}") from error
    if state.settings.get("precision") == "fp32":  # what earlier versions wrote
        state = replace(state, settings={**state.settings, "precision": "float32"})
    return tensors, state


def check_same_run(stored: RunState, wanted: RunState) -> None:
    """Raise where a checkpoint is of another run, naming what differs."""
    theirs, ours = ({**run.settings, "data_sha256": run.data_sha256} for run in (stored, wanted))
    for name in sorted(theirs.keys() | ours.keys()):
        old, new = theirs.get(name), ours.get(name)
        if old != new:
            raise InvalidInputError(
                f"the checkpoint was made with {name}={old!r}, this run has {name}={new!r}; "
                "resume with the old value, or start over (--fresh)"
            )
    if None not in (stored.code, wanted.code) and stored.code != wanted.code:
        raise InvalidInputError(
            "the checkpoint was made with other code of your classifier or defense; resume with the old "
            "code, or start over (--fresh)"
        )
    unfinished = len(stored.history) < wanted.settings["epochs"]
    if unfinished and None not in (stored.threads, wanted.threads) and stored.threads != wanted.threads:
        raise InvalidInputError(
            f"the checkpoint was made with {stored.threads} threads, this run has {wanted.threads} and would "
            f"end with other weights; resume with OMP_NUM_THREADS={stored.threads} in the environment, or "
            "start over (--fresh)"
        )
