"""Batch-norm statistics behind a defense: those of the checkpoint, or calibrated."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from torch import nn

from vqshield.classifiers import bundled_as_trained, is_bundled
from vqshield.core import checks
from vqshield.core.errors import InvalidInputError
from vqshield.core.settings import parse_spec, refuse_unknown
from vqshield.defenses import Defense
from vqshield.runs.target import Target

RUNNING: Final = "running"
CALIBRATED: Final = "calibrated"
BATCH_NORMS = (RUNNING, CALIBRATED)


@dataclass(frozen=True, kw_only=True)
class BatchNorm:
    """Which statistics, from a spec string: "running" or "calibrated:data=cifar10".

    Attributes:
        data, data_dir, split, images, method: of "calibrated", as for `vq.calibrate` (images: the limit);
            without data, the training split of the evaluated data. data_dir comes last.
    """

    mode: Literal["running", "calibrated"] = RUNNING
    data: str | None = None
    data_dir: str | None = None
    split: str = "train"
    images: int | None = None
    method: str = "auto"

    @classmethod
    def of(cls, text: str) -> "BatchNorm":
        """The statistics that a spec string names.

        Raises:
            InvalidInputError: an unknown mode or setting; the message lists the known ones.
        """
        spec, _, folder = _split(text)
        mode, settings = parse_spec(spec)
        checks.one_of("batch_norm", mode, BATCH_NORMS)
        refuse_unknown(mode, settings, ["data", "split", "images", "method"] if mode == CALIBRATED else [])
        if folder and mode != CALIBRATED:
            raise InvalidInputError(f"batch_norm={mode!r} takes no data_dir; {CALIBRATED} does")
        return cls(mode=mode, data_dir=folder or None, **settings)  # type: ignore[arg-type]

    @staticmethod
    def recorded(text: str) -> str | None:
        """How a manifest holds a spec string: a folder by its name alone; None for "running"."""
        settings, key, folder = _split(text)
        return None if text == RUNNING else f"{settings}{key}{Path(folder).name}"

    def classifier(self, target: Target, defense: Defense | None) -> nn.Module:
        """The target's classifier with the statistics for a defense; None: without one."""
        if self.mode == RUNNING or defense is None:
            return target.model
        from vqshield.training.calibration import calibrate  # most runs do not need training

        folder = self.data_dir or (target.data_dir if self.data in (None, target.data) else None)
        images: str | Path = self.data or target.data
        if images == "folder" and folder is not None:
            images = Path(folder)  # its images need no labels
        try:
            return calibrate(
                with_norms(target), images, defense=defense, method=self.method, limit=self.images,
                split=self.split, data_dir=folder,
            ).classifier  # fmt: skip
        except InvalidInputError as error:
            raise InvalidInputError(
                f"batch_norm={CALIBRATED!r}: {error}. Give images to calibrate with as in "
                "calibrated:data=cifar10,data_dir=FOLDER"
            ) from error


def with_norms(target: Target) -> nn.Module:
    """The target's classifier; a bundled one with its batch norms, which are folded otherwise."""
    bundled = is_bundled(target.classifier)
    return bundled_as_trained(target.classifier, target.place) if bundled else target.model


def _split(text: str) -> tuple[str, str, str]:
    """A spec string, the key of its folder, and the folder, whose path may hold any character."""
    spec, *folder = re.split(r"([,:]data_dir=)", text, maxsplit=1)
    return (spec, folder[0], folder[1]) if folder else (spec, "", "")
