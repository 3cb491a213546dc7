"""Accuracies for the audit: attack in chunks, evaluate on fresh draws, each with a seed of its own."""

import hashlib
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from vqshield import checks
from vqshield.audit.flags import Accuracy
from vqshield.defended import Defended
from vqshield.defenses import Defense
from vqshield.draws import Draws, evaluate
from vqshield.threats import Threat

if TYPE_CHECKING:
    from vqshield.audit.audit import AuditSettings


class Probes:
    """A classifier, a defense and images; every measurement has draws that no other has seen."""

    def __init__(
        self,
        classifier: nn.Module,
        defense: Defense,
        images: Tensor,
        labels: Tensor,
        settings: "AuditSettings",
    ) -> None:
        checks.image_batch(images)
        checks.pixel_values(images)
        self.classifier, self.defense, self.settings = classifier, defense, settings
        self.images, self.labels = images, checks.per_image("labels", labels, images)
        self._known: dict[Threat, tuple[Draws, Draws]] = {}

    def fresh(self, purpose: str) -> Defense:
        """The same defense with a seed for this purpose: repeatable, and independent of the others."""
        digest = hashlib.sha256(f"{self.settings.seed} {purpose}".encode()).digest()
        return self.defense.reseeded(int.from_bytes(digest[:8]))

    def natural(self) -> Draws:
        """Without any attack."""
        return self._evaluate(self.images, "natural")

    def draws(self, threat: Threat) -> tuple[Draws, Draws]:
        """Selection draws and report draws of the images that the threat finds."""
        if threat not in self._known:
            parts = (torch.split(each, self.settings.batch) for each in (self.images, self.labels))
            attacked = torch.cat([
                threat(self.classifier, self.fresh(f"{threat} {number}"), images, labels)
                for number, (images, labels) in enumerate(zip(*parts, strict=True))
            ])  # fmt: skip
            selection = self._evaluate(attacked, f"{threat} selection")
            self._known[threat] = selection, self._evaluate(attacked, f"{threat} report")
        return self._known[threat]

    def accuracy(self, threat: Threat) -> Accuracy:
        """On the report draws."""
        return Accuracy.of(self.draws(threat)[1])

    def _evaluate(self, images: Tensor, purpose: str) -> Draws:
        model = Defended(self.classifier, self.fresh(purpose))
        return evaluate(model, images, self.labels, runs=self.settings.runs, batch=4 * self.settings.batch)
