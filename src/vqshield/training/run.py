"""A whole training run: start or resume, keep checkpoints, write weights and card."""

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from vqshield.classifiers import Normalised
from vqshield.core.checks import whole
from vqshield.core.environment import pick_device
from vqshield.core.errors import InvalidInputError, VqshieldError
from vqshield.core.progress import Progress, no_progress
from vqshield.core.serialization import Json
from vqshield.data import ImageSet
from vqshield.data.base import digest_of
from vqshield.defenses import Defense
from vqshield.training.run_files import (
    RunFiles,
    RunState,
    check_same_run,
    checkpoint_due,
    read_checkpoint,
    write_checkpoint,
)
from vqshield.training.settings import TrainSettings
from vqshield.training.trainer import Trainer, fast_convolutions


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
    )
    work = trainer(settings, training, test, place, model=model, defense=defense)
    if not fresh and files.checkpoint.is_file():
        tensors, held = read_checkpoint(files.checkpoint)
        check_same_run(held, state)
        work.restore(tensors)
        state = replace(state, history=held.history)
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
    wrong = [name for name, held in tensors.items() if held.is_floating_point() and not held.isfinite().all()]
    if wrong:
        raise VqshieldError(
            f"after epoch {epoch} the weights {wrong[0]!r} hold nan or infinity; lower peak_lr={peak_lr} and "
            "start over"
        )
