"""Adversarial images of the bare classifier, found once for all defenses."""

import hashlib
from dataclasses import replace

from torch import Tensor, nn

from vqshield.attacks.threats import Threat
from vqshield.core.display_names import NONE


class AdversarialStore:
    """Attacks one bare classifier, and keeps what was found on the current chunk of images.

    An attack that ignores the defense finds the same images behind every defense.
    """

    def __init__(self) -> None:
        self._chunk: str | None = None
        self._kept: dict[Threat, Tensor] = {}

    def bare(self, threat: Threat, model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
        """What a threat makes of images (B, q, h, w) against the bare classifier."""
        bare, chunk = replace(threat, surrogate=NONE), images_digest(images, labels)
        if chunk != self._chunk:
            self._chunk, self._kept = chunk, {}
        if bare not in self._kept:
            self._kept[bare] = self.find(bare, model, images, labels)
        return self._kept[bare]

    def find(self, threat: Threat, model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
        """Run the attack."""
        return threat(model, None, images, labels)


def images_digest(images: Tensor, labels: Tensor) -> str:
    """SHA-256 of images and labels, with their types and shapes."""
    digest = hashlib.sha256()
    for part in (images, labels):
        digest.update(repr((part.dtype, tuple(part.shape))).encode())
        digest.update(part.detach().cpu().contiguous().numpy().data)
    return digest.hexdigest()
