"""Accuracies for the audit: attack in chunks, evaluate on fresh draws, each with a seed of its own."""

from collections.abc import MutableMapping

import torch
from torch import Tensor, nn

from vqshield.attacks.threats import Threat
from vqshield.auditing.gradients import gradients_wanted
from vqshield.auditing.settings import AuditSettings
from vqshield.core import checks
from vqshield.core.errors import NoGradientError
from vqshield.core.seeds import purpose_seed
from vqshield.core.serialization import Json, from_plain
from vqshield.defended import Defended
from vqshield.defenses import Defense
from vqshield.models.draws import Draws, draw_predictions

Predictions = tuple[tuple[int, ...], ...]
_NO_GRADIENT = "no gradient"


class Probes:
    """A classifier, a defense and images; every measurement has draws that no other has seen.

    `known` keeps what was measured, by the threat's full description: an audit that was stopped can go on.
    `place` tells measurements on other images apart, which may share what is known.
    """

    def __init__(
        self,
        classifier: nn.Module,
        defense: Defense,
        images: Tensor,
        labels: Tensor,
        settings: AuditSettings,
        known: MutableMapping[str, Json],
        place: str = "",
    ) -> None:
        checks.image_batch(images)
        checks.pixel_values(images)
        self.classifier, self.defense, self.settings = classifier, defense, settings
        self.images, self.labels = images, checks.per_image("labels", labels, images)
        self.known, self._place = known, place

    def on(self, images: Tensor, labels: Tensor, place: str) -> "Probes":
        """The same measurements on other images."""
        return Probes(self.classifier, self.defense, images, labels, self.settings, self.known, f"{place} ")

    def of(self, classifier: nn.Module, place: str) -> "Probes":
        """The same measurements of another classifier."""
        return Probes(
            classifier, self.defense, self.images, self.labels, self.settings, self.known, f"{place} "
        )

    @property
    def without_gradient(self) -> str | None:
        """Why attacks had no gradient to go by, if that was met."""
        return None if _NO_GRADIENT not in self.known else str(self.known[_NO_GRADIENT])

    def fresh(self, purpose: str) -> Defense:
        """The same defense with a seed for this purpose: repeatable, and independent of the others."""
        return self.defense.reseeded(purpose_seed(self.settings.seed, f"{self._place}{purpose}"))

    def natural(self) -> Draws:
        """Without any attack."""
        return self._evaluate(self.images, "natural")

    def draws(self, threat: Threat) -> tuple[Draws, Draws]:
        """Selection draws and report draws of the images that the threat finds."""
        name = f"{self._place}{threat!r}"
        if name not in self.known:
            attacked = self._attacked(threat)
            selection = self._evaluate(attacked, f"{threat} selection")
            report = self._evaluate(attacked, f"{threat} report")
            self.known[name] = [each.predictions.tolist() for each in (selection, report)]
        right = self.labels.cpu()
        kept = from_plain(tuple[Predictions, Predictions], self.known[name], name)
        first, second = (Draws(torch.tensor(each), right) for each in kept)
        return first, second

    def left(self, threat: Threat) -> Draws:
        """What it leaves, on the report draws."""
        return self.draws(threat)[1]

    def _attacked(self, threat: Threat) -> Tensor:
        """The images that it finds; as they were, where the model has no gradient to find any by."""
        parts = (torch.split(each, self.settings.batch) for each in (self.images, self.labels))
        try:
            with gradients_wanted():
                return torch.cat([
                    threat(self.classifier, self.fresh(f"{threat} {number}"), images, labels)
                    for number, (images, labels) in enumerate(zip(*parts, strict=True))
                ])  # fmt: skip
        except NoGradientError as error:
            if self.without_gradient is None:
                self.known[_NO_GRADIENT] = str(error)
            return self.images

    def _evaluate(self, images: Tensor, purpose: str) -> Draws:
        model = Defended(self.classifier, self.fresh(purpose))
        return draw_predictions(
            model, images, self.labels, runs=self.settings.runs, batch=4 * self.settings.batch
        )
