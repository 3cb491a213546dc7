"""What studies of attacks share: their settings, how an attack's images are judged, and the strongest attack.

Samples of the defense that attacks are found with, samples that choose each image's strongest attack, and
samples that are reported have seeds of their own: luck does not count as strength.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor, nn

from vqshield import attacks
from vqshield.attacks import Ball
from vqshield.core import checks
from vqshield.core.display_names import NONE
from vqshield.core.seeds import derived_seed, torch_seeded
from vqshield.defended import Defended
from vqshield.models.calling import check_rows, differ
from vqshield.models.draws import Draws, draw_predictions, outputs, strongest
from vqshield.runs.arguments import ROUNDING, defense_from, impossible_class
from vqshield.runs.manifests import TargetManifest
from vqshield.runs.records import AnyRecord, Key
from vqshield.runs.study import TargetStudy


@dataclass(frozen=True, kw_only=True)
class AttackSettings:
    """The budget of attacks, and how often the model is sampled.

    Attributes:
        norm: norm of the attacks' budget: "linf", "l2" or "l1".
        eps: budget of the attacks on pixels in [0, 1] (default: 8/255 for linf, 0.5 for l2, 12 for l1).
        runs: samples of the defense behind each result.
        selection: other samples, which choose each image's strongest attack (default: as many as runs).
        seed: seed of every sample of defenses and attacks.
        batch: images attacked at once.
    """

    norm: str = "linf"
    eps: float | None = None
    runs: int = 10
    selection: int | None = None
    seed: int = 0
    batch: int = 100

    def __post_init__(self) -> None:
        for name in ("runs", "batch"):
            checks.whole(name, getattr(self, name), least=1)
        if self.selection is not None:
            checks.whole("selection", self.selection, least=1)
        checks.whole("seed", self.seed, least=0, below=2**64)
        _ = self.ball  # refuses norms and budgets that cannot be, with attacks or without

    @property
    def ball(self) -> Ball:
        """Where attacks may move an image to."""
        return attacks.ball(self.norm, self.eps)

    @property
    def selection_runs(self) -> int:
        """How many samples choose the strongest attack."""
        return self.runs if self.selection is None else self.selection

    def shared(self) -> dict[str, Any]:
        """These settings by name, for another class that has them."""
        return {each.name: getattr(self, each.name) for each in fields(AttackSettings)}


@dataclass(frozen=True, kw_only=True)
class AttackManifest(AttackSettings, TargetManifest):
    """The settings of a study of attacks, as its manifest holds them; eps and selection are numbers there."""


@dataclass(frozen=True, kw_only=True)
class AttackCell:
    """The unit of work: one attack (or none) on one chunk of images in front of one defense (or none)."""

    defense: str
    attack: str
    images: range

    @property
    def keys(self) -> Sequence[Key]:
        """What its records are of."""
        return [(self.defense, self.attack, image) for image in self.images]


class Attacked(Protocol):
    """What the record of an attacked image says, whatever else it says."""

    @property
    def label(self) -> int:
        """The image's class."""
        ...

    @property
    def selected(self) -> int | None:
        """How many of the samples that choose the strongest attack are right."""
        ...

    @property
    def predictions(self) -> tuple[int, ...]:
        """Of the samples that are reported."""
        ...


AnyAttackManifest = TypeVar("AnyAttackManifest", bound=AttackManifest)
AnyAttackCell = TypeVar("AnyAttackCell", bound=AttackCell)


@dataclass(frozen=True, kw_only=True)
class AttackStudy(AttackSettings, TargetStudy[AnyAttackManifest, AnyAttackCell, AnyRecord]):
    """A study whose records hold what the model predicts for attacked images."""

    def __post_init__(self) -> None:
        TargetStudy.__post_init__(self)
        AttackSettings.__post_init__(self)

    def described(self) -> Mapping[str, Any]:
        return {"eps": self.ball.eps, "selection": self.selection_runs}

    def title(self, cell: AnyAttackCell) -> str:
        return cell.defense if cell.attack == NONE else f"{cell.defense}, {cell.attack}"

    def classifier_behind(self, defense: str) -> nn.Module:
        """The classifier that answers behind a defense, by spec string."""
        return self.target.model

    def judged(
        self, cell: AnyAttackCell, images: Tensor, found: Tensor, labels: Tensor, *, suffix: str = ""
    ) -> list[dict[str, Any]]:
        """For each image the label, distance, selected and predictions of its record.

        Args:
            cell: what was attacked.
            images, found, labels: the chunk's images, what the attack made of them, and their classes.
            suffix: tells several results of a cell apart, in the seeds of their samples.
        """
        right: Sequence[int | None] = [None] * len(images)
        if cell.attack != NONE:
            draws = self._draws(cell, f"selection{suffix}", found, labels, self.selection_runs)
            right = draws.right.tolist()
        answers = self._draws(cell, f"report{suffix}", found, labels, self.runs).predictions.T.tolist()
        distances = self.ball.distance(found, images).tolist()
        return [
            {"label": label, "distance": distance, "selected": selected, "predictions": tuple(predictions)}
            for label, distance, selected, predictions in zip(
                labels.tolist(), distances, right, answers, strict=True
            )
        ]

    def _draws(self, cell: AnyAttackCell, purpose: str, images: Tensor, labels: Tensor, runs: int) -> Draws:
        """Predictions behind the cell's defense in several runs; two, where those agree and the classifier
        is not known to be random.
        """
        seed, batch = self.seed_of(cell, purpose), 4 * self.batch  # no gradients to keep
        model = self.classifier_behind(cell.defense)
        shield = defense_from(cell.defense, seed=seed)
        if shield is None and not self.manifest.classifier.random:
            with torch_seeded(seed):
                first, again = outputs(model, images, runs=2, batch=batch)
            if not differ(first, again):  # every run would say the same
                check_rows(first, len(images))
                return Draws(first.argmax(-1).cpu().expand(runs, -1), labels.cpu())
        if shield is not None:
            model = Defended(model, shield.to(images.device))
        with torch_seeded(seed):
            return draw_predictions(model, images, labels, runs=runs, batch=batch)

    def seed_of(self, cell: AnyAttackCell, purpose: str) -> int:
        """The seed of one purpose in one cell."""
        return derived_seed(self.seed, cell.defense, cell.attack, cell.images.start, purpose)


def impossible_answers(
    manifest: AttackManifest, record: Attacked, *, distance: float, attacked: bool = True
) -> str | None:
    """What a record says that no attack within the manifest's budget can have given; None where nothing."""
    eps = manifest.ball.eps if attacked else 0
    if len(record.predictions) != manifest.runs:
        return f"it has {len(record.predictions)} predictions; the manifest says runs={manifest.runs}"
    if (wrong := impossible_class(manifest.data, (record.label, *record.predictions))) is not None:
        return wrong
    if not 0 <= distance <= eps + ROUNDING:  # nan is not, either
        return f"distance={distance} is not within eps={eps}"
    if record.selected is not None and not 0 <= record.selected <= manifest.selection_runs:
        return f"selected={record.selected} should be from 0 to selection={manifest.selection_runs}"
    return None


def strongest_draws(attacked: Sequence[Mapping[int, Attacked]]) -> Draws | None:
    """The reported samples of each image under its strongest attack.

    Args:
        attacked: the records of each attack, by image. Images that were not tried by all are left out.

    Returns:
        Samples in the order of the images; None where no image was tried by all.
    """
    images = sorted(set.intersection(*(set(each) for each in attacked)))
    if not images:
        return None
    records = [[each[image] for image in images] for each in attacked]
    labels = torch.tensor([record.label for record in records[0]])
    report = [Draws(torch.tensor([record.predictions for record in each]).T, labels) for each in records]
    if len(report) == 1:
        return report[0]
    return strongest([_selection_draws(each, labels) for each in records], report)[0]


def _selection_draws(records: Sequence[Attacked], labels: Tensor) -> Draws:
    """Samples with as many right answers as were counted: which ones were right plays no part."""
    counts = torch.tensor([record.selected for record in records])
    right = torch.arange(int(counts.max()))[:, None] < counts  # (samples, N)
    return Draws(torch.where(right, labels, -1), labels)
