"""Batch-norm statistics behind a defense: those of the checkpoint, or calibrated."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from vqshield.classifiers import bundled_as_trained, is_bundled
from vqshield.core import checks
from vqshield.core.errors import InvalidInputError
from vqshield.core.settings import parse_spec, refuse_unknown
from vqshield.defenses import Defense
from vqshield.runs.target import Target

RUNNING = "running"
CALIBRATED = "calibrated"
BATCH_NORMS = (RUNNING, CALIBRATED)


def parse_batch_norm(text: str) -> Mapping[str, Any]:
    """The settings in "running" (none) or "calibrated:data=cifar10,split=train,images=500,method=paired",
    which are those of `vq.calibrate` (images: the limit). data_dir=FOLDER comes last.

    Raises:
        InvalidInputError: an unknown mode or setting; the message lists the known ones.
    """
    spec, _, folder = _split(text)
    mode, settings = parse_spec(spec)
    checks.one_of("batch_norm", mode, BATCH_NORMS)
    refuse_unknown(mode, settings, ["data", "split", "images", "method"] if mode == CALIBRATED else [])
    if folder and mode != CALIBRATED:
        raise InvalidInputError(f"batch_norm={mode!r} takes no data_dir; {CALIBRATED} does")
    return settings | ({"data_dir": folder} if folder else {})


def recorded_batch_norm(text: str) -> str | None:
    """How a manifest holds a spec string: a folder by its name alone; None for "running"."""
    settings, key, folder = _split(text)
    return None if text == RUNNING else f"{settings}{key}{Path(folder).name}"


def calibrated_for(text: str, target: Target, defense: Defense) -> nn.Module:
    """The target's classifier calibrated for a defense, without `data` on the training split of its data."""
    from vqshield.training.calibration import calibrate  # most runs do not need training

    settings = parse_batch_norm(text)
    data = settings.get("data", target.data)
    folder = settings.get("data_dir", target.data_dir if data == target.data else None)
    try:
        return calibrate(
            with_norms(target),
            Path(folder) if data == "folder" and folder is not None else data,  # its images need no labels
            defense=defense,
            method=settings.get("method", "auto"),
            limit=settings.get("images"),
            split=settings.get("split", "train"),
            data_dir=folder,
        ).classifier
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
