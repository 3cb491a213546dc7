"""A folder of adversarial images of bare classifiers, for all studies of a reproduction.

Tables attack the same images of the same classifier. A study finds the images of another study there, and so
does another process.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, nn

from vqshield.attacks import Ball
from vqshield.attacks.threats import Threat
from vqshield.certification.records import CertificateRecord, CertificationCell, CertificationManifest
from vqshield.certification.study import Certification
from vqshield.core.files import write_atomically
from vqshield.core.serialization import Json
from vqshield.evaluation.records import EvaluationManifest, EvaluationRecord
from vqshield.evaluation.study import Evaluation, EvaluationCell
from vqshield.runs.adversarial import AdversarialStore, images_digest
from vqshield.runs.code import sources_digest
from vqshield.runs.records import AnyRecord
from vqshield.runs.study import AnyCell, AnyTargetManifest, TargetStudy
from vqshield.runs.target import ClassifierId

_ROUNDING = 1e-6  # what attacks themselves are allowed
_IMAGES, _DIGEST = "images", "sha256"


class SharedStore(AdversarialStore):
    """Runs an attack only where the folder does not hold its images, or holds a damaged file.

    Whatever changes the images (code and arithmetic of classifier and vqshield) changes the name of their
    file. Of the data only the chunk counts: studies of more or fewer images have the same chunks.
    """

    def __init__(self, folder: Path, *, classifier: ClassifierId, machine: Mapping[str, Json]) -> None:
        super().__init__()
        code = [classifier.source, sources_digest()]
        self._of = {"classifier": classifier.sha256, "code": code, "machine": machine}
        self._folder = folder

    def find(self, threat: Threat, model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
        """The images of the threat's file; it is written first where necessary."""
        question = {**self._of, "chunk": images_digest(images, labels), "threat": repr(threat)}
        name = hashlib.sha256(json.dumps(question, sort_keys=True).encode()).hexdigest()
        path = self._folder / f"{name}.safetensors"
        found = _read(path, images, threat.attack.ball)
        if found is None:
            found = super().find(threat, model, images, labels)
            _write(path, found)
        return found


@dataclass(frozen=True, kw_only=True)
class SharingStudy(TargetStudy[AnyTargetManifest, AnyCell, AnyRecord]):
    """A study that may share the images it finds.

    Attributes:
        shared: a folder that keeps images found against the bare classifier for other runs and processes.
    """

    shared: Path | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.shared is not None:  # other processes may have another current directory
            object.__setattr__(self, "shared", Path(self.shared).absolute())

    @property
    def attacked_id(self) -> ClassifierId:
        """The classifier whose images are kept."""
        return self.manifest.classifier

    @cached_property
    def store(self) -> AdversarialStore:
        if self.shared is None or self.target.is_remote:  # it may answer differently tomorrow
            return super().store
        return SharedStore(self.shared, classifier=self.attacked_id, machine=self.manifest.machine)


@dataclass(frozen=True, kw_only=True)
class SharedEvaluation(SharingStudy[EvaluationManifest, EvaluationCell, EvaluationRecord], Evaluation):
    """An evaluation that shares its images."""


@dataclass(frozen=True, kw_only=True)
class SharedCertification(
    SharingStudy[CertificationManifest, CertificationCell, CertificateRecord], Certification
):
    """Certificates of images that are shared."""


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


def _digest(images: Tensor) -> Tensor:
    """SHA-256 of the values, as a tensor: bits that flipped on a disk stay within the ball."""
    digest = hashlib.sha256(images.numpy().tobytes()).digest()
    return torch.tensor(list(digest), dtype=torch.uint8)
