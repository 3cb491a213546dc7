"""Accuracies for the audit: attack in chunks, evaluate on fresh draws, each with its own seed."""

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from vqshield.attacks.threats import Threat
from vqshield.auditing.gradients import gradients_wanted
from vqshield.auditing.results import AuditSettings
from vqshield.core import checks
from vqshield.core.errors import NoGradientError
from vqshield.core.seeds import purpose_seed
from vqshield.defended import Defended
from vqshield.defenses import Defense
from vqshield.models.draws import Draws, draw_predictions
from vqshield.runs.manifests import ThreatId
from vqshield.runs.notes import Notes

_Predictions = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, kw_only=True)
class _Attacked:
    """Predictions for comparing attacks and for reports; without_gradient: why the attack found none."""

    selection: _Predictions
    report: _Predictions
    without_gradient: str | None = field(default=None, metadata={"omit": True})


@dataclass(frozen=True, kw_only=True, eq=False)
class Probes:
    """A classifier, a defense and images; every measurement has its own draws.

    Attributes:
        notes: keep the predictions under attacks.
        place: tells copies with another classifier or other images apart, which share the notes.
        no_gradient: why attacks found no gradient, if any did not; shared with copies.
    """

    classifier: nn.Module
    defense: Defense
    images: Tensor
    labels: Tensor
    settings: AuditSettings
    notes: Notes = field(default_factory=Notes)
    place: str = ""
    no_gradient: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        checks.image_batch(self.images)
        checks.pixel_values(self.images)
        object.__setattr__(self, "labels", checks.per_image("labels", self.labels, self.images))

    def on(self, images: Tensor, labels: Tensor, place: str) -> "Probes":
        """The same measurements on other images."""
        return replace(self, images=images, labels=labels, place=place)

    @property
    def without_gradient(self) -> str | None:
        """Why an attack found no gradient; None if all did."""
        return self.no_gradient[0] if self.no_gradient else None

    def fresh(self, purpose: str) -> Defense:
        """The defense with a seed for this purpose: repeatable, and independent of the others."""
        return self.defense.reseeded(purpose_seed(self.settings.seed, f"{self.place} {purpose}".lstrip()))

    def natural(self) -> Draws:
        """Without attack."""
        return self._evaluate(self.images, "natural")

    def draws(self, threat: Threat) -> tuple[Draws, Draws]:
        """Selection draws and report draws under an attack."""
        of = {"attack": ThreatId.of(threat), "place": self.place}
        found = self.notes.value(_Attacked, of, lambda: self._attacked(threat))
        if found.without_gradient is not None:
            self.no_gradient.append(found.without_gradient)
        labels = self.labels.cpu()
        return Draws(torch.tensor(found.selection), labels), Draws(torch.tensor(found.report), labels)

    def left(self, threat: Threat) -> Draws:
        """The report draws under an attack."""
        return self.draws(threat)[1]

    def _attacked(self, threat: Threat) -> _Attacked:
        """Seeds are derived from the threat's repr."""
        parts = (torch.split(each, self.settings.batch) for each in (self.images, self.labels))
        images, why = self.images, None
        try:
            with gradients_wanted():
                images = torch.cat([
                    threat(self.classifier, self.fresh(f"{threat} {number}"), *part)
                    for number, part in enumerate(zip(*parts, strict=True))
                ])  # fmt: skip
        except NoGradientError as error:
            why = str(error)
        selection, report = (
            tuple(map(tuple, self._evaluate(images, f"{threat} {purpose}").predictions.tolist()))
            for purpose in ("selection", "report")
        )
        return _Attacked(selection=selection, report=report, without_gradient=why)

    def _evaluate(self, images: Tensor, purpose: str) -> Draws:
        model = Defended(self.classifier, self.fresh(purpose))
        runs, batch = self.settings.runs, 4 * self.settings.batch
        return draw_predictions(model, images, self.labels, runs=runs, batch=batch)
