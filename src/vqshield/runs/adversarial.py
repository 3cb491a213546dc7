"""Adversarial images of the bare classifier, found once for all defenses.

An attack that ignores the defense finds the same images behind every defense. They are kept in memory for the
current chunk and, where a folder is given, in files for other runs and processes.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, nn

from vqshield.attacks import Ball
from vqshield.attacks.threats import Threat
from vqshield.core.display_names import NONE
from vqshield.core.files import write_atomically
from vqshield.core.serialization import Json, to_plain
from vqshield.runs.code import sources_digest
from vqshield.runs.manifests import ThreatId
from vqshield.runs.target import ClassifierId

_ROUNDING = 1e-6  # what attacks themselves are allowed
_IMAGES, _DIGEST = "images", "sha256"


class AdversarialStore:
    """Returns the images that an attack finds, and runs it only where they are not stored or are damaged.

    Whatever changes the images (code and arithmetic of classifier and vqshield) changes the name of their
    file. Of the data only the chunk counts: studies of more or fewer images have the same chunks.
    """

    def __init__(
        self, *, classifier: ClassifierId, machine: Mapping[str, Json], folder: Path | None = None
    ) -> None:
        code = [classifier.source, sources_digest()]
        self._of = {"classifier": classifier.sha256, "code": code, "machine": machine}
        self._folder = folder
        self._chunk: str | None = None
        self._kept: dict[str, Tensor] = {}

    def bare(self, threat: Threat, model: nn.Module, images: Tensor, labels: Tensor, *, seed: int) -> Tensor:
        """What a threat makes of images (B, q, h, w) against the bare classifier; seed is the threat's."""
        bare, ball = replace(threat, surrogate=NONE), threat.attack.ball
        chunk = images_digest(images, labels)
        if chunk != self._chunk:
            self._chunk, self._kept = chunk, {}
        question = {
            **self._of, "chunk": chunk, "threat": to_plain(ThreatId.of(bare)),
            "norm": ball.norm, "eps": ball.eps, "seed": seed,
        }  # fmt: skip
        name = hashlib.sha256(json.dumps(question, sort_keys=True).encode()).hexdigest()
        if name not in self._kept:
            path = self._folder and self._folder / f"{name}.safetensors"
            stored = None if path is None else _read(path, images, ball)
            if stored is None:
                stored = bare(model, None, images, labels)
                if path is not None:
                    _write(path, stored)
            self._kept[name] = stored
        return self._kept[name]


def _write(path: Path, images: Tensor) -> None:
    content = images.detach().cpu().contiguous()
    write_atomically(path, save({_IMAGES: content, _DIGEST: _digest(content)}))


def _read(path: Path, clean: Tensor, ball: Ball) -> Tensor | None:
    """The images of a file; None where it is missing, or no attack could have written it."""
    try:
        tensors = load(path.read_bytes())
        images, digest = tensors[_IMAGES], tensors[_DIGEST]
    except (FileNotFoundError, SafetensorError, KeyError):
        return None
    if images.shape != clean.shape or images.dtype != clean.dtype or not torch.equal(digest, _digest(images)):
        return None
    images = images.to(clean.device)
    within = ball.distance(images, clean) <= ball.eps + _ROUNDING  # False for NaN, too
    return images if bool(within.all()) and bool(((images >= 0) & (images <= 1)).all()) else None


def images_digest(images: Tensor, labels: Tensor) -> str:
    """SHA-256 of images and labels, with their types and shapes."""
    digest = hashlib.sha256()
    for part in (images, labels):
        digest.update(repr((part.dtype, tuple(part.shape))).encode())
        digest.update(part.detach().cpu().contiguous().numpy().data)
    return digest.hexdigest()


def _digest(images: Tensor) -> Tensor:
    """SHA-256 of the values, as a tensor: bits that flipped on a disk stay within the ball."""
    digest = hashlib.sha256(images.numpy().tobytes()).digest()
    return torch.tensor(list(digest), dtype=torch.uint8)
