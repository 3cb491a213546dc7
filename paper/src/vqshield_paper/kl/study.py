"""The KL diagnostic against the budget of an attack, image by image: Fig. 8 of the paper, with its floor.

A cell is one image in front of one defense, with all budgets: they share what is measured of the image
itself. A fitted mixture bounds nothing: no kl is written without its floor.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

import vqshield_paper
from vqshield.attacks import Ball, ball
from vqshield.attacks.threats import Threat, threat
from vqshield.core import checks
from vqshield.core.display_names import NONE
from vqshield.core.errors import InvalidInputError
from vqshield.core.seeds import derived_seed
from vqshield.defenses import Quantizer
from vqshield.runs.arguments import defense_from, refuse_twice
from vqshield.runs.manifests import NO_THREAT, DefenseId, SourceId, TargetManifest, ThreatId
from vqshield.runs.records import Key, Record
from vqshield.runs.study import CellProgress, Recorded, no_cell_progress
from vqshield_paper.kl.measurement import DivergenceSettings, Measurement, Proved, measure
from vqshield_paper.shared_images import SharingStudy


@dataclass(frozen=True, kw_only=True)
class KLRecord(Record):
    """The diagnostic of one image and of what an attack with a budget of eps made of it; 0: the image again.

    distance: how far it was moved, in the norm of the study.
    kl, floor, excess: in nats, with the standard errors of their Monte-Carlo sums alone; kl means nothing
        without the floor, which is the same measurement between two sets of codebooks of the same image.
    second: the term of the labels, None where it was not computed; second_is: what it means for the defense.
    proved: what each term cannot exceed, whatever the mixtures say; None where nothing is proved.
    log_likelihood: of the mixture of x at the codebooks it was fitted to; held_out_loss: how much less it is
        at fresh ones.
    """

    eps: float
    image: int
    label: int
    distance: float
    kl: float
    kl_standard_error: float
    floor: float
    floor_standard_error: float
    excess: float
    excess_standard_error: float
    second: float | None
    second_standard_error: float | None
    second_is: str
    proved: dict[str, float | None]
    log_likelihood: float
    held_out_loss: float
    converged: bool
    codebooks: int
    dimensions: int

    @property
    def key(self) -> Key:
        return self.defense, _what_at(self.eps), self.image

    @classmethod
    def of(
        cls, found: Measurement, *, defense: str, eps: float, image: int, label: int, distance: float
    ) -> "KLRecord":
        """The record of a measurement, less its times, which differ from run to run."""
        diagnostic = found.diagnostic
        second = diagnostic.second
        return cls(
            defense=defense,
            eps=eps,
            image=image,
            label=label,
            distance=distance,
            kl=diagnostic.kl.value,
            floor=diagnostic.floor.value,
            excess=diagnostic.excess.value,
            kl_standard_error=diagnostic.kl.standard_error,
            floor_standard_error=diagnostic.floor.standard_error,
            excess_standard_error=diagnostic.excess.standard_error,
            second=None if second is None else second.value,
            second_standard_error=None if second is None else second.standard_error,
            second_is=found.second_is,
            proved={"first": found.proved.first, "second": found.proved.second},
            log_likelihood=diagnostic.log_likelihood,
            held_out_loss=diagnostic.log_likelihood - diagnostic.held_out,
            converged=diagnostic.converged,
            codebooks=diagnostic.codebooks,
            dimensions=diagnostic.dimensions,
        )


@dataclass(frozen=True, kw_only=True)
class KLManifest(TargetManifest):
    """What the records of the diagnostic are of.

    attacked: "together", which random numbers an image was given by its attack.
    """

    norm: str
    images: int
    label_images: int | None
    seed: int
    divergence: DivergenceSettings
    attacked: str = "together"
    defenses: tuple[DefenseId, ...]
    sources: tuple[SourceId, ...]


@dataclass(frozen=True, kw_only=True)
class KLCell:
    """The unit of work: one image in front of one defense, moved by every budget."""

    defense: str
    image: int
    eps: tuple[float, ...]

    @property
    def keys(self) -> list[Key]:
        """What its records are of."""
        return [(self.defense, _what_at(eps), self.image) for eps in self.eps]


@dataclass(frozen=True, kw_only=True)
class KLStudy(SharingStudy[KLManifest, KLCell, KLRecord]):
    """How far the codebooks of an attacked image are from those of the image: a record for every budget.

    The defaults are the paper's on CIFAR-10.

    Attributes:
        defenses: spec strings; they must have codebooks.
        eps: the budgets; 0: no attack, only other draws of the same image, so that kl is a second floor.
        attack: a spec string; one that ignores the defense gives all defenses the same x'.
        images: the first of the data, or all where it has fewer.
        label_images: for this many of them the second term is measured too, which takes longest; None: all.
        divergence: how kl is measured, with a seed of its own; seed is the attack's.
    """

    defenses: tuple[str, ...] = ("randdisc:codes=25", "prd:size=2,codes=25", "swrd:size=3,codes=25")
    eps: tuple[float, ...] = tuple(budget / 255 for budget in range(0, 17, 2))
    attack: str = "autoattack:surrogate=none"
    norm: str = "linf"
    images: int = 10
    label_images: int | None = None
    divergence: DivergenceSettings = field(default_factory=DivergenceSettings)
    seed: int = 0

    manifest_type = KLManifest
    record_type = KLRecord
    package = vqshield_paper.__name__

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.whole("images", self.images, least=1)
        checks.whole("seed", self.seed, least=0, below=2**64)
        if self.label_images is not None:
            checks.whole("label_images", self.label_images, least=0)
        if not self.eps:
            raise InvalidInputError("eps holds no budget; give at least one, 0 for the floor alone")
        for eps in self.eps:
            self._threat(eps, seed=0)
        refuse_twice("eps", self.eps)
        if not self.defenses:
            raise InvalidInputError("no defense is given; give at least one")
        refuse_twice("defense", self.defenses)
        _ = self.built  # refuses defenses without codebooks

    def build(self, spec: str) -> Quantizer:
        return self._create(spec)

    def described(self) -> Mapping[str, Any]:
        return {
            "images": min(self.images, len(self.target.images)),
            "attacked": "together",
            "sources": tuple(
                SourceId(eps=float(eps), attack=ThreatId.of(self._threat(eps, seed=0)) if eps else NO_THREAT)
                for eps in self.eps
            ),
        }

    @staticmethod
    def cells_of(manifest: KLManifest) -> list[KLCell]:
        """Image after image: a study that is stopped has every defense and budget on the same."""
        budgets = tuple(source.eps for source in manifest.sources)
        return [
            KLCell(defense=defense.name, image=image, eps=budgets)
            for image in range(manifest.images)
            for defense in manifest.defenses
        ]

    def measure(self, cell: KLCell, progress: CellProgress = no_cell_progress) -> list[KLRecord]:
        def stage(name: str) -> None:
            progress(f"{self.title(cell)}: {name}", 0)

        image, label = self.target.part(slice(cell.image, cell.image + 1))
        stage("attack")
        moved = torch.cat([self._moved(cell, eps) for eps in cell.eps])
        defense = self._create(cell.defense).to(self.target.place)
        found = measure(defense, image, moved, settings=self._divergence(cell), report=stage)
        return [
            KLRecord.of(
                each,
                defense=cell.defense,
                eps=eps,
                image=cell.image,
                label=int(label),
                distance=float(self._ball(eps).distance(other, image)),
            )
            for each, eps, other in zip(found, cell.eps, torch.split(moved, 1), strict=True)
        ]

    def cost(self, cell: KLCell) -> int:
        """How many codebooks are drawn: of x, of x again and of every x'."""
        return (2 + len(cell.eps)) * self.divergence.codebooks

    def title(self, cell: KLCell) -> str:
        return f"{cell.defense}, image {cell.image}"

    @cached_property
    def _bare(self) -> bool:
        return self._threat(self.eps[0], seed=0).surrogate == NONE

    @cached_property
    def _attacked(self) -> dict[tuple[str, float], Tensor]:
        """All images as an attack moved them, by defense (or none) and budget, as far as they were needed."""
        return {}

    def _divergence(self, cell: KLCell) -> DivergenceSettings:
        last = self.label_images
        if last is None or cell.image < last:
            return self.divergence
        return replace(self.divergence, label_codebooks=0)

    def _moved(self, cell: KLCell, eps: float) -> Tensor:
        """x', which does not depend on the defense where the attack ignores it.

        All images are attacked together, whichever is asked for: a GPU takes as long for one of them.
        """
        if eps == 0:
            return self.target.part(slice(cell.image, cell.image + 1))[0]
        key = NONE if self._bare else cell.defense, eps
        if key not in self._attacked:
            self._attacked[key] = self._all_moved(cell.defense, eps)
        return self._attacked[key][cell.image : cell.image + 1]

    def _all_moved(self, name: str, eps: float) -> Tensor:
        seed = derived_seed(self.seed, self.attack, f"eps={eps}")
        chosen = self._threat(eps, seed=seed)
        images, labels = self.target.part(slice(0, self.manifest.images))
        if self._bare:
            return self.store.bare(chosen, self.target.model, images, labels)
        defense = self._create(name, seed=derived_seed(seed, name, "attacked draws")).to(self.target.place)
        return chosen(self.target.model, defense, images, labels)

    def _ball(self, eps: float) -> Ball:
        return ball(self.norm, eps)

    def _threat(self, eps: float, *, seed: int) -> Threat:
        return threat(self.attack, self._ball(eps), seed=seed)

    def _create(self, text: str, *, seed: int = 0) -> Quantizer:
        defense = defense_from(text, seed=seed)
        if not isinstance(defense, Quantizer):
            raise InvalidInputError(f"defense {text!r} has no codebooks to compare; give one that quantizes")
        return defense


def _what_at(eps: float) -> str:
    """The budget's name in a record's key."""
    return f"kl eps={eps}"


@dataclass(frozen=True, kw_only=True)
class Mean:
    """A mean over images and its standard error, from their spread; one image has none."""

    mean: float
    standard_error: float | None

    @classmethod
    def of(cls, values: Sequence[float]) -> "Mean":
        """Of at least one value."""
        error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None
        return cls(mean=statistics.fmean(values), standard_error=error)


@dataclass(frozen=True, kw_only=True)
class KLRow:
    """Means over the images of one defense and budget, in nats.

    second, second_images: the term of the labels, and for how many images it was measured.
    proved: means of what is proved for each image; None as soon as one image has none.
    """

    defense: str
    eps: float
    attack: str
    images: int
    kl: Mean
    floor: Mean
    excess: Mean
    second: Mean | None
    second_images: int
    second_is: str
    proved: Proved
    distance: float
    held_out_loss: float
    converged: int
    codebooks: int
    dimensions: int


@dataclass(frozen=True, kw_only=True)
class KLSummary:
    """What the diagnostic found; fitted mixtures bound nothing: compare kl with its floor."""

    title: str
    complete: bool
    rows: tuple[KLRow, ...]
    seconds: float
    manifest: KLManifest

    @classmethod
    def of(cls, recorded: Recorded[KLManifest, KLRecord]) -> "KLSummary":
        """From records; of a study that is not finished, what there is."""
        manifest = recorded.manifest
        rows = []
        for defense in manifest.defenses:
            for source in manifest.sources:
                part = [
                    record
                    for record in recorded.records
                    if (record.defense, record.eps) == (defense.name, source.eps)
                ]
                if part:
                    rows.append(_row(defense.name, source, part))
        return cls(
            title=f"KL diagnostic of {manifest.images} images of {manifest.data.name}, "
            f"classifier {manifest.classifier.name}",
            complete=len(recorded.records)
            == manifest.images * len(manifest.sources) * len(manifest.defenses),
            rows=tuple(rows),
            seconds=round(sum(recorded.seconds.values()), 1),
            manifest=manifest,
        )


def _row(defense: str, source: SourceId, records: Sequence[KLRecord]) -> KLRow:
    labels = [record.second for record in records if record.second is not None]
    return KLRow(
        defense=defense,
        eps=source.eps,
        attack=source.attack.name,
        images=len(records),
        kl=Mean.of([record.kl for record in records]),
        floor=Mean.of([record.floor for record in records]),
        excess=Mean.of([record.excess for record in records]),
        second=Mean.of(labels) if labels else None,
        second_images=len(labels),
        second_is=records[0].second_is,
        proved=Proved(first=_proved(records, "first"), second=_proved(records, "second")),
        distance=statistics.fmean(record.distance for record in records),
        held_out_loss=statistics.fmean(record.held_out_loss for record in records),
        converged=sum(record.converged for record in records),
        codebooks=records[0].codebooks,
        dimensions=records[0].dimensions,
    )


def _proved(records: Sequence[KLRecord], term: str) -> float | None:
    """The mean of the bounds, which bounds the mean; None as soon as one image has none."""
    bounds = [bound for record in records if (bound := record.proved[term]) is not None]
    return statistics.fmean(bounds) if len(bounds) == len(records) else None
