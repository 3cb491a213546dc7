"""A whole training run: read the data, begin or resume, keep checkpoints, write weights and card."""

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from vqshield.classifiers import Normalised
from vqshield.core.checks import whole
from vqshield.core.devices import pick_device
from vqshield.core.environment import environment
from vqshield.core.errors import InvalidInputError
from vqshield.core.files import write_json
from vqshield.core.serialization import Json
from vqshield.data import ImageSet, load
from vqshield.defenses import Defense
from vqshield.training.checkpoint import Checkpoint, Pace, check_same_run, read_checkpoint, write_checkpoint
from vqshield.training.progress import EpochRecord, Progress, Silent
from vqshield.training.saving import as_saved, check_finite_weights, network_card, save_trained
from vqshield.training.settings import TrainSettings
from vqshield.training.trainer import Trainer, fast_convolutions


@dataclass(frozen=True, kw_only=True)
class TrainResult:
    """Where the weights and the card went, what came out, the card, and the classifier as the file has it."""

    weights: Path
    card_file: Path
    settings: TrainSettings
    test_accuracy: float
    test_images: int
    seconds: float
    card: Mapping[str, Json]
    model: Normalised


def train(
    settings: TrainSettings,
    *,
    folder: str | Path,
    out: str | Path,
    device: str = "cpu",
    resume: bool = True,
    test_every: int = 1,
    progress: Progress | None = None,
) -> TrainResult:
    """Train on the data set in ``folder``; write NAME.safetensors and NAME.json into ``out``.

    Args:
        settings: everything that decides the weights.
        folder: folder with the data set's official binary files.
        out: folder for weights, card and checkpoint.
        device: "cpu", "cuda" or "auto".
        resume: continue from the checkpoint in out, if there is one; its settings and data must be equal.
        test_every: test after every N epochs, and after the last.
        progress: is told about every epoch.
    """
    training, test = load(settings.data, "train", folder), load(settings.data, "test", folder)
    return train_on(
        settings,
        training,
        test,
        out=out,
        device=device,
        resume=resume,
        test_every=test_every,
        progress=progress,
    )


def train_on(
    settings: TrainSettings,
    training: ImageSet,
    test: ImageSet,
    *,
    out: str | Path,
    device: str = "cpu",
    resume: bool = True,
    test_every: int = 1,
    progress: Progress | None = None,
    model: Normalised | None = None,
    defense: Defense | None = None,
    notes: Mapping[str, Json] | None = None,
) -> TrainResult:
    """Train on images already read; with model and defense, those in place of what the settings name.

    With ``resume``, a checkpoint in ``out`` is continued; it must be of equal settings and data, and on a CPU
    of the same number of threads. Stopped at any moment, even by kill -9, the run leaves the checkpoint of a
    whole epoch: the last, or, where writing one takes long, one of the last few (``Pace``). On a CPU a
    resumed run ends with the very weights of an unbroken one if torch and processor are the same, too. Every
    ``test_every``-th epoch is tested, and the last; what stands in ``notes`` goes into the card.
    """
    whole("test_every", test_every, least=1)
    place, watcher = pick_device(device), progress or Silent()
    checkpoint_file = checkpoint_path(settings.name, out)
    _keep_the_start(settings, Path(out))
    data_sha256 = _fingerprint(training, test)
    threads = torch.get_num_threads() if place.type == "cpu" else None  # no GPU's results depend on it
    trainer = Trainer(settings, training, test, place, model=model, defense=defense)
    history: list[EpochRecord] = []
    if resume and checkpoint_file.is_file():
        checkpoint = read_checkpoint(checkpoint_file)
        check_same_run(checkpoint, settings=settings.to_dict(), data_sha256=data_sha256, threads=threads)
        trainer.restore(checkpoint.tensors)
        history = list(checkpoint.history)
    Path(out).mkdir(parents=True, exist_ok=True)  # here already: a wrong folder should not cost an epoch
    watcher.start(epochs=settings.epochs, done=len(history), steps=trainer.steps)
    pace = Pace()
    with fast_convolutions():
        for number in range(len(history), settings.epochs):
            last = number + 1 == settings.epochs
            history.append(trainer.epoch(number, watcher, test=last or (number + 1) % test_every == 0))
            state = Checkpoint(
                tensors=trainer.tensors(),
                settings=settings.to_dict(),
                data_sha256=data_sha256,
                history=tuple(history),
                threads=threads,
            )
            check_finite_weights(state.tensors["weights"], epoch=number + 1, peak_lr=settings.peak_lr)
            if last or pace.due:
                with pace.writing():
                    write_checkpoint(checkpoint_file, state)
            watcher.epoch_end(history[-1])
    return _finish(settings, trainer, training, test, history, Path(out), data_sha256, notes or {})


def checkpoint_path(name: str, out: str | Path) -> Path:
    """Where the run that writes NAME.safetensors keeps its checkpoint."""
    return Path(out) / f"{name}.checkpoint.safetensors"


def _finish(
    settings: TrainSettings,
    trainer: Trainer,
    training: ImageSet,
    test: ImageSet,
    history: list[EpochRecord],
    out: Path,
    data_sha256: str,
    notes: Mapping[str, Json],
) -> TrainResult:
    weights, card_file = out / f"{settings.name}.safetensors", out / f"{settings.name}.json"
    described = {"data": settings.data, "seed": str(settings.seed)}
    if settings.shield is not None:
        described["shield"] = settings.shield  # certifying the file needs the noise that it was trained with
    save_trained(weights, trainer.best, described)
    saved = as_saved(weights, trainer.best, trainer.device)  # the accuracy that counts is the file's
    accuracy, seconds = trainer.test_accuracy(saved), round(sum(epoch.seconds for epoch in history), 3)
    card: dict[str, Json] = {
        "data": settings.data,
        "data_sha256": data_sha256,
        "train_images": len(training),
        "test_images": len(test),
        "classes": list(training.classes),
        "settings": settings.to_dict(),
        "seed": settings.seed,
        "network": network_card(saved),
        "parameters": sum(parameter.numel() for parameter in trainer.model.parameters()),
        "bytes": weights.stat().st_size,
        "test_accuracy": accuracy,
        **notes,
        "seconds": seconds,
        **environment(trainer.device),
        "history": [asdict(epoch) for epoch in history],
    }
    write_json(card_file, card)
    return TrainResult(
        weights=weights,
        card_file=card_file,
        settings=settings,
        test_accuracy=accuracy,
        test_images=len(test),
        seconds=seconds,
        card=card,
        model=saved,
    )


def _keep_the_start(settings: TrainSettings, out: Path) -> None:
    """Raise where the run would write its weights over the file that it starts from."""
    target = out / f"{settings.name}.safetensors"
    if settings.start is not None and target.exists() and target.samefile(settings.start):
        raise InvalidInputError(
            f"start={settings.start_name!r} is where out={str(out)!r} would get its weights; give another out"
        )


def _fingerprint(*sets: ImageSet) -> str:
    digest = hashlib.sha256()
    for part in sets:
        digest.update(part.labels.numpy().tobytes())
        digest.update(part.images.contiguous().numpy().data)
    return digest.hexdigest()
