"""Harden: fine-tune a classifier behind the defense that it will be used behind."""

import copy
import os
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from vqshield.classifiers import (
    Network,
    Normalised,
    as_shown_to,
    check_classes,
    class_count,
    is_source,
    source_digest,
    weights_digest,
)
from vqshield.classifiers.folding import Precision
from vqshield.core import checks
from vqshield.core.environment import pick_device
from vqshield.core.errors import InvalidInputError
from vqshield.core.progress import Progress, no_progress
from vqshield.data import FileSet, ImageSet, load
from vqshield.data.arrays import as_bytes
from vqshield.data.folders import PLACES
from vqshield.defended import Defended
from vqshield.defenses import Defense, DefenseLike
from vqshield.models.calling import check_weights
from vqshield.reports.table import Column, Table, Tabular
from vqshield.training.run import RunFiles, TrainResult, train_on
from vqshield.training.settings import CompileMode, TrainSettings
from vqshield.training.shielding import TrainingShield, accuracy
from vqshield.training.subject import IN_MEMORY, Subject, file_stem, resolve

COPIES = 3  # of the training images in memory at once: as read, in an epoch's order, augmented


@dataclass(frozen=True, kw_only=True)
class HardenSettings(TrainSettings):
    """The settings of training, the classifier, the SHA-256 of its weights, and the stem of the files."""

    epochs: int = 15
    batch: int = 256
    peak_lr: float = 0.1
    ema: float = 0.998
    classifier: str
    classifier_sha256: str
    stem: str

    def _check_subject(self) -> None:
        """Data, classifier and defense are loaded already, and fit."""

    @property
    def name(self) -> str:
        return self.stem

    @property
    def code(self) -> str | None:
        return " ".join(filter(None, (super().code, source_digest(self.classifier)))) or None


@dataclass(frozen=True, kw_only=True)
class Hardened(TrainResult, Tabular):
    """A classifier that was fine-tuned behind a defense.

    Attributes:
        model: the classifier behind the defense, ready for use; the classifier itself without a defense.
        before, after: accuracy on the test images behind the defense, one sample per image.
        weights, card_file: paths of the weights and their card.
        load: what load_classifier takes for these weights.
        test_images, seconds, settings, card: of the run.
    """

    before: float
    load: str

    @property
    def after(self) -> float:
        return self.test_accuracy

    @property
    def table(self) -> Table:
        """The accuracy before and after."""
        return Table(
            title=f"Fine-tuning {self.settings.name}",
            columns=[Column("training", "training"), Column("accuracy", "accuracy in %", "percent")],
            rows=[["before", self.before], ["after", self.after]],
            caption=f"{self.test_images} test images, one sample per image",
        )


def harden(
    classifier: nn.Module | str,
    defense: DefenseLike | None = None,
    images: Tensor | str = "cifar10",
    labels: Tensor | None = None,
    *,
    method: str = "natural",
    test: tuple[Tensor, Tensor] | None = None,
    data_dir: Path | str | None = None,
    limit: int | None = None,
    test_limit: int | None = None,
    epochs: int = HardenSettings.epochs,
    batch: int = HardenSettings.batch,
    lr: float = HardenSettings.peak_lr,
    ema: float = HardenSettings.ema,
    cutout: int = HardenSettings.cutout,
    padding: int = HardenSettings.padding,
    label_smoothing: float = HardenSettings.label_smoothing,
    seed: int = 0,
    precision: Precision | None = None,
    compile_mode: CompileMode = HardenSettings.compile_mode,
    out: Path | str = "vqshield-harden",
    name: str | None = None,
    device: str = "auto",
    fresh: bool = False,
    progress: Progress = no_progress,
) -> Hardened:
    """Fine-tune a classifier behind the defense that it will be used behind.

    That restores most of the clean accuracy that a defense costs. docs/hardening.md says against which
    attacks it helps. The classifier is not changed: a copy of it is trained in float32.

    Args:
        classifier: a module from images in [0, 1] to logits, a model that `vq.defend` made, or what `vqshield
            list classifiers` shows: a safetensors file, "small-cifar10", "timm:NAME", "module:function".
        defense: "swrd:size=3,codes=25", "package.module:function", any Defense, or a module or function from
            images to images; "none" for none. Without it, that of a defended model, else "swrd".
        images: training images (N, q, h, w), bytes or floats in [0, 1] (kept as bytes), or the name of a data
            set with a training split, such as cifar10, or folder: one sub-folder of image files per class.
        labels: (N,) classes, a tensor, array or list, of images that are tensors or arrays.
        method: images that every step shows the classifier behind the defense: "natural" (clean images),
            "noise:sigma=0.06" (with Gaussian noise, before the defense),
            "adversarial:loss=trades,eps=8/255,steps=7,beta=6,surrogate=soft" (images that an attack found
            through the defense; surrogate=none: without it), "consistency:draws=2,agreement=10,entropy=0.5"
            (samples of a random defense that should agree, for its certificate), or "splitting:agreement=3"
            (the same for splitting:scale=…).
        test: images and labels to measure accuracy on, for tensors (default: the last tenth of the images,
            which is then not trained on).
        data_dir: folder with the official files of a named data set (default: the cache folder).
        limit: use the first N training images (default: all).
        test_limit: use the first N test images (default: all).
        epochs: passes over the training images.
        batch: images per step.
        lr: highest learning rate of the one-cycle schedule.
        ema: decay of the averaged weights; 0: no averaging.
        cutout: side of the square that is painted over, in pixels; 0: none.
        padding: shift images by up to this many pixels.
        label_smoothing: share of the target that is spread over all classes.
        seed: seed of order, augmentation and every sample.
        precision: "float32" or "bf16" (default: bf16 on a GPU, else float32).
        compile_mode: mode of torch.compile: "off", "default", "reduce-overhead" or
            "max-autotune-no-cudagraphs".
        out: folder for NAME.safetensors, its card NAME.json, and the checkpoint to resume from.
        name: stem of those files (default: the classifier's name and "-hardened").
        device: "cpu", "cuda", or "auto", the GPU where there is one.
        fresh: start over. Without it, a checkpoint in out is continued; its settings and data must be equal.
        progress: called with the epoch, its loss and test accuracy, the steps that are done, and all steps.

    Returns:
        The hardened classifier behind the defense as `.model`, its accuracy `.before` and `.after`, and the
        paths `.weights` and `.card_file`.

    Raises:
        InvalidInputError: a classifier, defense, method or data that do not fit one another, before any work.
        FileFormatError: broken weights or images.
        VqshieldError: the loss became nan or infinite; the last checkpoint stays.

    Example:
        >>> import tempfile
        >>> hardened = vq.harden(
        ...     "small-cifar10", "swrd", images, labels, epochs=1, batch=4, out=tempfile.mkdtemp()
        ... )
        >>> hardened.model(images).shape
        torch.Size([8, 10])
        >>> hardened.weights.name
        'small-cifar10-hardened.safetensors'
    """
    place = pick_device(device)
    subject = resolve(classifier, defense, default="swrd")
    source, shield, model = subject.name, subject.defense, _trainable(subject)
    training, tested = _data(images, labels, test, data_dir, limit, test_limit, model)
    _check_alike(training, tested)
    check_classes(model, source, training, torch.device("cpu"))
    settings = HardenSettings(
        data=training.name,
        arch=model.network.arch if isinstance(model.network, Network) else type(model.network).__name__,
        epochs=epochs,
        batch=batch,
        peak_lr=lr,
        ema=ema,
        cutout=cutout,
        padding=padding,
        label_smoothing=label_smoothing,
        seed=seed,
        precision=precision or ("bf16" if place.type == "cuda" else "float32"),
        compile_mode=compile_mode,
        shield=None if shield is None else shield.spec or repr(shield),
        start=classifier if isinstance(classifier, str) and not is_source(classifier) else None,
        method=method,
        classifier=source,
        classifier_sha256=weights_digest(model),
        stem=file_stem(name, source, "hardened"),
    )
    before = _accuracy(model, shield, tested, settings.seed, place)
    portable = Path() if Path(out).is_absolute() else Path(out)  # no card names a path of this machine
    load = RunFiles(portable, settings.name).how_to_load(source, model)
    result = train_on(
        settings,
        training,
        tested,
        out=out,
        device=device,
        fresh=fresh,
        progress=progress,
        model=model,
        defense=shield,
        notes={"test_accuracy_before": before, "load": load},
    )
    ready = result.model.eval().requires_grad_(False)
    changes = {
        "model": ready if shield is None else Defended(ready, shield),
        "load": RunFiles(Path(out), settings.name).how_to_load(source, model),
    }
    return Hardened(before=before, **{**vars(result), **changes})


def _trainable(subject: Subject) -> Normalised:
    """A copy of the classifier that can be trained, on the CPU in float32."""
    classifier = subject.classifier
    check_weights(classifier)
    if not isinstance(classifier, Normalised):
        classifier = Normalised(classifier, mean=[0], std=[1])
    model = copy.deepcopy(classifier)
    parameters = list(model.parameters())
    if not parameters:
        raise InvalidInputError(f"classifier {subject.name!r} has no weights that could be tuned")
    if not any(parameter.requires_grad for parameter in parameters):
        model.requires_grad_(True)  # otherwise layers that are frozen stay frozen
    return model.float()  # halves have too few digits for small steps


def _data(
    images: Tensor | str,
    labels: Tensor | None,
    test: tuple[Tensor, Tensor] | None,
    folder: Path | str | None,
    limit: int | None,
    test_limit: int | None,
    model: Normalised,
) -> tuple[ImageSet, ImageSet]:
    """The images to train on and those to test on, in memory."""
    if isinstance(images, str):
        if labels is not None or test is not None:
            raise InvalidInputError(f"labels or test are given with {images!r}, which has its own")
        if images == "folder" and folder is not None:
            _check_has_test(Path(folder))
        training = _in_memory(load(images, "train", folder, limit=limit), model)
        return training, _in_memory(load(images, "test", folder, limit=test_limit), model)
    if folder is not None:
        raise InvalidInputError(f"data_dir={str(folder)!r} is given with tensors; give the data set's name")
    if labels is None:
        raise InvalidInputError("labels are missing; give one for each image")
    data = _from_tensors(images, labels, model)
    if test is not None:
        return data.take(limit), _from_tensors(*test, model).take(test_limit)
    if len(data) < 2:
        raise InvalidInputError("1 image cannot be both trained and tested on; give more, or test=")
    kept = max(1, len(data) // 10)
    last = ImageSet(data.name, data.images[-kept:], data.labels[-kept:], data.classes)
    return data.take(len(data) - kept).take(limit), last.take(test_limit)


def _check_has_test(folder: Path) -> None:
    """Refuse a folder that has images to train on but none to test on."""
    names = [name for name in PLACES["test"] if name != "."]
    if (folder / "train").is_dir() and not any((folder / name).is_dir() for name in names):
        raise InvalidInputError(
            f"{folder} has train, but no {' or '.join(names)} with images to measure accuracy on"
        )


def _in_memory(images: ImageSet, model: Normalised) -> ImageSet:
    """All images of a data set, image files at the classifier's size."""
    images = as_shown_to(model, images)
    if not isinstance(images, FileSet):
        return images
    wanted, available = COPIES * len(images) * images.read(slice(1)).numel(), _memory()
    if wanted > available:
        raise InvalidInputError(
            f"{len(images)} images of {images.name!r} take {wanted >> 20} MiB in training, this machine has "
            f"{available >> 20} MiB; give a limit"
        )
    return ImageSet(images.name, images.images, images.labels, images.classes)


def _memory() -> int:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # not on Windows
        return 1 << 62


def _from_tensors(images: Tensor, labels: Tensor, model: Normalised) -> ImageSet:
    tensor = checks.as_tensor("images", images).detach().cpu()
    if tensor.ndim != 4:
        raise InvalidInputError(f"images of shape {tuple(tensor.shape)} should be (N, channels, h, w)")
    pixels = as_bytes(tensor, "images")
    one = pixels[:1].float() / 255
    classes = class_count(model, one, name=type(model.network).__name__, data=IN_MEMORY)
    return ImageSet(IN_MEMORY, pixels, checks.labels(labels), tuple(map(str, range(classes))))


def _check_alike(training: ImageSet, test: ImageSet) -> None:
    """Refuse training and test images that differ in their classes or their shape."""
    if training.classes != test.classes:
        raise InvalidInputError(
            f"the training images of {training.name!r} have {_counted(training.classes)}, the test images "
            f"have {_counted(test.classes)}; give both the same classes, in train and in test or val"
        )
    shapes = tuple(training.images.shape[1:]), tuple(test.images.shape[1:])
    if shapes[0] != shapes[1]:
        raise InvalidInputError(
            f"training images of shape {shapes[0]} and test images of shape {shapes[1]} should have one shape"
        )


def _counted(classes: tuple[str, ...]) -> str:
    shown = ", ".join(classes[:3]) + (", …" if len(classes) > 3 else "")
    return f"{len(classes)} classes ({shown})"


def _accuracy(
    model: Normalised, defense: Defense | None, test: ImageSet, seed: int, device: torch.device
) -> float:
    """The accuracy before training, on the samples that the classifier is tested on after it."""
    shield = None if defense is None else TrainingShield(defense, seed=seed, device=device)
    if shield is not None:
        shield.check(test.images[:1])
    return accuracy(model.to(device), test.images.to(device), test.labels.to(device), shield=shield)
