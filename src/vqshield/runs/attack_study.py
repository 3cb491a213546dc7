"""What studies of attacks share: their settings, how attacked images are judged, and the strongest attack.

Samples of the defense for the attack, for choosing each image's strongest attack, and for the report have
different seeds, so that luck does not count as strength.
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
        batch: images per forward pass of an attack.
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
        _ = self.ball  # refuses impossible norms and budgets

    @property
    def ball(self) -> Ball:
        return attacks.ball(self.norm, self.eps)

    @property
    def selection_runs(self) -> int:
        return self.runs if self.selection is None else self.selection

    def shared(self) -> dict[str, Any]:
        """These settings by name, for another class with the same fields."""
        return {each.name: getattr(self, each.name) for each in fields(AttackSettings)}


@dataclass(frozen=True, kw_only=True)
class AttackManifest(AttackSettings, TargetManifest):
    """The settings of a study of attacks in its manifest, where eps and selection are numbers."""


@dataclass(frozen=True, kw_only=True)
class AttackCell:
    """One attack (or none) on one chunk of images in front of one defense (or none)."""

    defense: str
    attack: str
    images: range

    @property
    def keys(self) -> Sequence[Key]:
        return [(self.defense, self.attack, image) for image in self.images]


class Attacked(Protocol):
    """What every record of an attacked image has: the image's class, how many selection samples are right,
    and the predictions of the reported samples.
    """

    @property
    def label(self) -> int: ...
    @property
    def selected(self) -> int | None: ...
    @property
    def predictions(self) -> tuple[int, ...]: ...


AnyAttackManifest = TypeVar("AnyAttackManifest", bound=AttackManifest)
AnyAttackCell = TypeVar("AnyAttackCell", bound=AttackCell)


@dataclass(frozen=True, kw_only=True)
class AttackStudy(AttackSettings, TargetStudy[AnyAttackManifest, AnyAttackCell, AnyRecord]):
    """A study whose records hold what the model predicts for attacked images."""

    def __post_init__(self) -> None:
        TargetStudy.__post_init__(self)
        AttackSettings.__post_init__(self)

    def described(self) -> Mapping[str, object]:
        return {"eps": self.ball.eps, "selection": self.selection_runs}

    def title(self, cell: AnyAttackCell) -> str:
        return cell.defense if cell.attack == NONE else f"{cell.defense}, {cell.attack}"

    def classifier_behind(self, defense: str) -> nn.Module:
        """The classifier behind a defense, by spec string."""
        return self.target.model

    def judged(
        self, cell: AnyAttackCell, images: Tensor, attacked: Tensor, labels: Tensor, *, suffix: str = ""
    ) -> list[dict[str, Any]]:
        """For each of a chunk's images and what an attack made of them: label, distance, selected and
        predictions of its record; suffix: separates the seeds of several results of a cell.
        """
        right: Sequence[int | None] = [None] * len(images)
        if cell.attack != NONE:
            draws = self._draws(cell, f"selection{suffix}", attacked, labels, self.selection_runs)
            right = draws.right.tolist()
        answers = self._draws(cell, f"report{suffix}", attacked, labels, self.runs).predictions.T.tolist()
        distances = self.ball.distance(attacked, images).tolist()
        return [
            {"label": label, "distance": distance, "selected": selected, "predictions": tuple(predictions)}
            for label, distance, selected, predictions in zip(
                labels.tolist(), distances, right, answers, strict=True
            )
        ]

    def _draws(self, cell: AnyAttackCell, purpose: str, images: Tensor, labels: Tensor, runs: int) -> Draws:
        """Predictions behind the cell's defense in several runs, which are all equal if the first two are and
        neither defense nor classifier is random.
        """
        seed, batch = self.seed_of(cell, purpose), 4 * self.batch  # no gradients to keep
        model = self.classifier_behind(cell.defense)
        defense = defense_from(cell.defense, seed=seed)
        if defense is None and not self.manifest.classifier.random:
            with torch_seeded(seed):
                first, again = outputs(model, images, runs=2, batch=batch)
            if not differ(first, again):
                check_rows(first, len(images))
                return Draws(first.argmax(-1).cpu().expand(runs, -1), labels.cpu())
        if defense is not None:
            model = Defended(model, defense.to(images.device))
        with torch_seeded(seed):
            return draw_predictions(model, images, labels, runs=runs, batch=batch)

    def seed_of(self, cell: AnyAttackCell, purpose: str) -> int:
        return derived_seed(self.seed, cell.defense, cell.attack, cell.images.start, purpose)


def impossible_answers(
    manifest: AttackManifest, record: Attacked, *, distance: float, attacked: bool = True
) -> str | None:
    """What no attack within the manifest's budget can have given; None where a record is possible."""
    eps = manifest.ball.eps if attacked else 0
    if len(record.predictions) != manifest.runs:
        return f"it has {len(record.predictions)} predictions; the manifest says runs={manifest.runs}"
    if (wrong := impossible_class(manifest.data, (record.label, *record.predictions))) is not None:
        return wrong
    if not 0 <= distance <= eps + ROUNDING:  # also refuses nan
        return f"distance={distance} is not within eps={eps}"
    if record.selected is not None and not 0 <= record.selected <= manifest.selection_runs:
        return f"selected={record.selected} should be from 0 to selection={manifest.selection_runs}"
    return None


def strongest_draws(attacked: Sequence[Mapping[int, Attacked]]) -> Draws | None:
    """The reported samples of each image under its strongest attack.

    Args:
        attacked: the records of each attack, by image. Other images than those of all attacks do not count.

    Returns:
        Samples in the order of the images; None where no image has records of all attacks.
    """
    images = sorted(set.intersection(*map(set, attacked)))
    if not images:
        return None
    by_attack = [[records[image] for image in images] for records in attacked]
    labels = torch.tensor([record.label for record in by_attack[0]])
    report = [Draws(torch.tensor([each.predictions for each in records]).T, labels) for records in by_attack]
    if len(report) == 1:
        return report[0]
    return strongest([_selection_draws(records, labels) for records in by_attack], report)[0]


def _selection_draws(records: Sequence[Attacked], labels: Tensor) -> Draws:
    """Samples with as many right predictions as were counted: their order does not matter."""
    counts = torch.tensor([record.selected for record in records])
    right = torch.arange(int(counts.max()))[:, None] < counts  # (samples, N)
    return Draws(torch.where(right, labels, -1), labels)
