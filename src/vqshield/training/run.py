"""A whole training run: start or resume, keep checkpoints, write weights and card."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from vqshield.classifiers import Normalised
from vqshield.core.checks import whole
from vqshield.core.devices import pick_device
from vqshield.core.errors import InvalidInputError, VqshieldError
from vqshield.core.progress import Progress, no_progress
from vqshield.core.serialization import Json
from vqshield.data import ImageSet
from vqshield.data.base import digest_of
from vqshield.defenses import Defense
from vqshield.training.checkpoint import Pace, RunState, check_same_run, read_checkpoint, write_checkpoint
from vqshield.training.saving import RunFiles
from vqshield.training.settings import TrainSettings
from vqshield.training.trainer import Steps, Trainer, fast_convolutions


@dataclass(frozen=True, kw_only=True)
class TrainResult:
    """Where the weights and the card went, what came out, the card, and the classifier as the file has it."""

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
    resume: bool = True,
    test_every: int = 1,
    progress: Progress = no_progress,
    trainer: type[Trainer] = Trainer,
    model: Normalised | None = None,
    defense: Defense | None = None,
    notes: Mapping[str, Json] | None = None,
) -> TrainResult:
    """Train; write NAME.safetensors and its card NAME.json into ``out``.

    With ``resume``, a checkpoint in ``out`` is continued; it must be of equal settings and data, and on a CPU
    of the same number of threads. Stopped at any moment, even by kill -9, the run leaves the checkpoint of a
    whole epoch: the last, or, where writing one takes long, one of the last few (``Pace``). On a CPU a
    resumed run ends with the very weights of an unbroken one if torch and processor are the same, too.

    Args:
        test_every: epochs between two tests; the last epoch is always tested.
        trainer: a subclass for another recipe.
        model, defense: what to train and behind what, in place of what the settings name.
        notes: further facts for the card.
    """
    whole("test_every", test_every, least=1)
    place, files = pick_device(device), RunFiles(Path(out), settings.name)
    _keep_the_start(settings, files)
    state = RunState(
        settings=settings.to_dict(),
        data_sha256=digest_of(training, test),
        threads=torch.get_num_threads() if place.type == "cpu" else None,  # no GPU's results depend on it
    )
    work = trainer(settings, training, test, place, model=model, defense=defense)
    if resume and files.checkpoint.is_file():
        tensors, held = read_checkpoint(files.checkpoint)
        check_same_run(held, state)
        work.restore(tensors)
        state = replace(state, history=held.history)
    files.folder.mkdir(parents=True, exist_ok=True)  # here already: a wrong folder should not cost an epoch
    epochs, done, total = settings.epochs, len(state.history), settings.epochs * work.steps
    resumed = f"resumed from the checkpoint after epoch {done} of {epochs}"
    progress(resumed if done else f"{epochs} epochs of {work.steps} steps", done * work.steps, total)
    pace = Pace()
    with fast_convolutions():
        while done < epochs:
            test_now = done + 1 == epochs or (done + 1) % test_every == 0
            record = work.epoch(done, _reporter(progress, work, state), test=test_now)
            state, done = replace(state, history=(*state.history, record)), done + 1
            tensors = work.tensors()
            _check_finite(tensors["weights"], epoch=done, peak_lr=settings.peak_lr)
            if done == epochs or pace.due:
                with pace.writing():
                    write_checkpoint(files.checkpoint, tensors, state)
            progress(_described(done, epochs, record.loss, state), done * work.steps, total)
    return _finished(work, training, state, files, notes or {})


def _reporter(progress: Progress, work: Trainer, state: RunState) -> Steps:
    """What an epoch calls every few steps."""
    done, epochs = len(state.history), work.settings.epochs

    def report(step: int, loss: float) -> None:
        doing = _described(done + 1, epochs, loss, state)
        progress(doing, done * work.steps + step, epochs * work.steps)

    return report


def _described(epoch: int, epochs: int, loss: float, state: RunState) -> str:
    """Where the training is, with the last test accuracy."""
    tested = [each.test_accuracy for each in state.history if each.test_accuracy is not None]
    return f"epoch {epoch}/{epochs}  loss {loss:.3f}" + (f"  test {tested[-1]:.2%}" if tested else "")


def _finished(
    work: Trainer, training: ImageSet, state: RunState, files: RunFiles, notes: Mapping[str, Json]
) -> TrainResult:
    settings = work.settings
    described = {"data": settings.data, "seed": str(settings.seed)}
    if settings.shield is not None:
        described["shield"] = settings.shield  # certifying the file needs the noise that it was trained with
    files.save(work.best, described)
    saved = files.saved(work.best, work.device)  # the accuracy that counts is the file's
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
    card = files.write_card(saved, facts, device=work.device, seconds=seconds, history=epochs)
    return TrainResult(
        model=saved,
        weights=files.weights,
        card_file=files.card,
        settings=settings,
        test_accuracy=accuracy,
        test_images=len(work.test_labels),
        seconds=round(seconds, 3),
        card=card,
    )


def _keep_the_start(settings: TrainSettings, files: RunFiles) -> None:
    """Raise where the run would write its weights over the file that it starts from."""
    target = files.weights
    if settings.start is not None and target.exists() and target.samefile(settings.start):
        raise InvalidInputError(
            f"start={settings.start_name!r} is where out={str(files.folder)!r} would get its weights; "
            "give another out"
        )


def _check_finite(tensors: Mapping[str, Tensor], *, epoch: int, peak_lr: float) -> None:
    """Refuse to keep weights that the last steps made nan or infinite: no run could go on from them."""
    wrong = [name for name, held in tensors.items() if held.is_floating_point() and not held.isfinite().all()]
    if wrong:
        raise VqshieldError(
            f"after epoch {epoch} the weights {wrong[0]!r} hold nan or infinity; lower peak_lr={peak_lr} and "
            "start over"
        )
