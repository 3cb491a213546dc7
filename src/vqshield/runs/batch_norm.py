"""Batch-norm statistics behind a defense: those of the checkpoint, calibrated, or those of each batch."""

import copy
import math
import re
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vqshield.classifiers import bundled_as_trained, is_bundled
from vqshield.core import checks
from vqshield.core.errors import InvalidInputError
from vqshield.core.settings import parse_spec, refuse_unknown
from vqshield.defenses import Defense
from vqshield.runs.target import Target

RUNNING: Final = "running"
BATCH: Final = "batch"
CALIBRATED: Final = "calibrated"
SAME: Final = "same"
_SETTINGS = {
    RUNNING: (),
    BATCH: ("size", "attack"),
    CALIBRATED: ("data", "split", "images", "method"),
}


class BatchStatistics(nn.Module):
    """A classifier whose batch norms use each batch's own mean and variance, as in training mode.

    A prediction then depends on the other images of the batch: this is for reproducing published numbers
    alone. The running statistics are neither used nor changed; a single image is classified with them.

    Args:
        classifier: with batch norms that are not folded; it is copied.
        size: images per batch. A call with more is cut into equal batches of at most that many.
    """

    def __init__(self, classifier: nn.Module, size: int) -> None:
        from vqshield.training.calibration import batch_norms, check_norms  # a run seldom needs training

        super().__init__()
        check_norms(classifier, type(classifier).__name__)
        self.running, self.size = classifier, checks.whole("size", size, least=2)
        self.batch, self._groups = copy.deepcopy(classifier).eval(), 1
        for norm in batch_norms(self.batch).values():
            norm.layer.forward = partial(self._normalized, norm.layer)

    def forward(self, images: Tensor) -> Tensor:
        """Logits (B, classes)."""
        if len(images) == 1:
            logits: Tensor = self.running(images)
            return logits
        parts = math.ceil(len(images) / self.size)
        least, longer = divmod(len(images), parts)
        first = longer * (least + 1)  # in batches with one image more
        found = []
        for part, self._groups in ((images[:first], longer), (images[first:], parts - longer)):
            if len(part):
                found.append(self.batch(part))
        return torch.cat(found)

    def _normalized(self, layer: Any, values: Tensor) -> Tensor:
        """Every batch by its own statistics, all of them in one call: the rest of the network is not cut."""
        groups, (count, channels, *rest) = self._groups, values.shape
        folded = values.view(groups, count // groups, channels, *rest).transpose(0, 1)
        scale, shift = (None if each is None else each.repeat(groups) for each in (layer.weight, layer.bias))
        joined = folded.reshape(count // groups, groups * channels, *rest)
        found = F.batch_norm(joined, None, None, scale, shift, True, eps=layer.eps)
        return found.view(count // groups, groups, channels, *rest).transpose(0, 1).reshape(values.shape)


@dataclass(frozen=True, kw_only=True)
class BatchNorm:
    """Which statistics, from a spec string: "running", "batch:size=100" or "calibrated:data=cifar10".

    Attributes:
        size: images per batch, of "batch".
        attack: of "batch", which statistics attacked models use: "same", or "running".
        data, data_dir, split, images, method: of "calibrated", as of `vq.calibrate` (images: the limit);
            without data, the training split of the data that are evaluated. data_dir comes last.
    """

    mode: Literal["running", "batch", "calibrated"] = RUNNING
    size: int = 100
    attack: Literal["same", "running"] = SAME
    data: str | None = None
    data_dir: str | None = None
    split: str = "train"
    images: int | None = None
    method: str = "auto"

    @classmethod
    def of(cls, text: str) -> "BatchNorm":
        """The statistics that a spec string names.

        Raises:
            InvalidInputError: an unknown mode or setting, answered with the known ones.
        """
        spec, _, folder = _split(text)
        mode, settings = parse_spec(spec)
        checks.one_of("batch_norm", mode, list(_SETTINGS))
        refuse_unknown(mode, settings, list(_SETTINGS[mode]))
        if folder and mode != CALIBRATED:
            raise InvalidInputError(f"batch_norm={mode!r} takes no data_dir; {CALIBRATED} does")
        found = cls(mode=mode, data_dir=folder or None, **settings)  # type: ignore[arg-type]
        checks.whole("size", found.size, least=2)
        checks.one_of("attack", found.attack, [SAME, RUNNING])
        return found

    @staticmethod
    def recorded(text: str) -> str | None:
        """How a manifest holds a spec string: a folder without its place; None for "running"."""
        settings, at, folder = _split(text)
        return None if text == RUNNING else f"{settings}{at}{Path(folder).name}"

    @property
    def attacks_running(self) -> bool:
        """Whether attacks on the bare classifier see the checkpoint's statistics."""
        return self.mode != BATCH or self.attack == RUNNING

    def classifier(self, target: Target, defense: Defense | None) -> nn.Module:
        """The target's classifier as it answers behind a defense; None: without one."""
        if self.mode == RUNNING or (self.mode == CALIBRATED and defense is None):
            return target.model
        named = is_bundled(target.classifier)
        model = bundled_as_trained(target.classifier, target.place) if named else target.model
        if self.mode == BATCH:
            return BatchStatistics(model, self.size)
        from vqshield.training.calibration import calibrate

        assert defense is not None
        folder = self.data_dir or (target.data_dir if self.data in (None, target.data) else None)
        images: str | Path = self.data or target.data
        if images == "folder" and folder is not None:
            images = Path(folder)  # its images need no labels
        try:
            return calibrate(
                model, images, defense=defense, method=self.method, limit=self.images,
                split=self.split, data_dir=folder,
            ).classifier  # fmt: skip
        except InvalidInputError as error:
            raise InvalidInputError(
                f"batch_norm={CALIBRATED!r}: {error}. Images to calibrate with are given as in "
                "calibrated:data=cifar10,data_dir=FOLDER"
            ) from error


def _split(text: str) -> tuple[str, str, str]:
    """A spec string, and its folder: a path may hold what no other setting may."""
    spec, *folder = re.split(r"([,:]data_dir=)", text, maxsplit=1)
    return (spec, folder[0], folder[1]) if folder else (spec, "", "")
