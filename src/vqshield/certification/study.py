"""Certificates of a defended classifier, image by image, in a run that resumes after any stop."""

import json
import math
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor, nn

from vqshield import certificates
from vqshield.attacks import ball
from vqshield.attacks.threats import Threat, threat
from vqshield.certificates.numbers import chance
from vqshield.certification.records import (
    DRAWS,
    EVIDENCE,
    KINDS,
    CertificateManifest,
    CertificateRecord,
    CertificationCell,
    CertificationManifest,
    DrawsRecord,
    SequentialRecord,
    VoteRecord,
)
from vqshield.certification.summary import NORM, CertificationSummary
from vqshield.classifiers import BUNDLED
from vqshield.classifiers.folding import PRECISIONS, fast_forward
from vqshield.core import checks
from vqshield.core.display_names import NONE
from vqshield.core.errors import InvalidInputError
from vqshield.core.seeds import derived_seed
from vqshield.core.settings import format_value
from vqshield.data import SAMPLE_NAME
from vqshield.defenses import Defense, DefenseLike, GaussianNoise, list_all_defenses
from vqshield.runs.arguments import ROUNDING, defense_from, impossible_class, split_model, target_from
from vqshield.runs.executors import Executor, run_study
from vqshield.runs.manifests import NO_THREAT, SourceId, ThreatId
from vqshield.runs.study import CellProgress, Progress, TargetStudy, no_cell_progress, no_progress
from vqshield.runs.target import defenses_inside
from vqshield.voting import counting
from vqshield.voting.counting import SEQUENTIAL, VOTE, Advance, block_size, of_class, sampled_logits

ALL = "all"
CERTIFICATES = (VOTE, DRAWS, SEQUENTIAL, ALL)
AnyManifest = TypeVar("AnyManifest", bound=CertificateManifest)
AnyRecord = TypeVar("AnyRecord", bound=CertificateRecord)


@dataclass(frozen=True, kw_only=True)
class CertificateStudy(TargetStudy[AnyManifest, CertificationCell, AnyRecord]):
    """What every certification shares; settings as of `certify`. Attacks see the classifier in float32."""

    defense: str
    seed: int = 0
    batch: int = 500  # also decides how many images are the unit of work
    precision: str = "float32"

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.one_of("precision", self.precision, PRECISIONS)
        checks.whole("batch", self.batch, least=1)
        checks.whole("seed", self.seed, least=0, below=2**64)

    def described(self) -> Mapping[str, object]:
        if self.target.is_random:
            raise InvalidInputError(
                f"classifier {self.target.name!r} answers differently when called twice; certificates need "
                "one whose only randomness is the defense's"
            )
        return {"values": self.target.images.floats(slice(1)).numel()}

    @classmethod
    def parse(cls, line: bytes) -> CertificateRecord:
        return KINDS[json.loads(line)["certificate"]].parse(line)

    @cached_property
    def forward(self) -> Callable[[Tensor], Tensor]:
        return fast_forward(self.target.model, device=self.target.place, precision=self.precision)

    def measure(self, cell: CertificationCell, progress: CellProgress = no_cell_progress) -> list[AnyRecord]:
        images, labels = self.target.part(cell.images)
        done = 0

        def advance(samples: int) -> None:
            nonlocal done
            done += samples
            progress(self.title(cell), done)

        return self.certified(cell, images, labels.cpu(), advance)

    @abstractmethod
    def certified(
        self, cell: CertificationCell, images: Tensor, labels: Tensor, advance: Advance
    ) -> list[AnyRecord]:
        """The records of a cell; labels: on the CPU."""


@dataclass(frozen=True, kw_only=True)
class Certification(CertificateStudy[CertificationManifest, CertificateRecord]):
    """The certificates of every image that samples can give; settings as of `certify`.

    Draws that an attack is made with, draws that choose a vote's answer and draws that certify have seeds of
    their own: what is certified is fixed before the draws that certify it.
    """

    defense: str = "prd"
    certificate: str = ALL
    attack: str = "pgd:steps=20,surrogate=none"
    eps: tuple[float, ...] = (ball(NORM).eps,)  # clean images are certified in any case
    draws: int = 1000
    delta: float = 0.005
    n0: int = 100
    n: int = 10_000
    alpha: float = 0.001
    wanted: tuple[float, ...] = ()  # radii that a sequential certificate decides about; default: even ones

    manifest_type = CertificationManifest

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.one_of("certificate", self.certificate, CERTIFICATES)
        for name in ("draws", "n0", "n"):
            checks.whole(name, getattr(self, name), least=1)
        for name in ("delta", "alpha"):
            chance(name, getattr(self, name))
        threats = [self._threat(eps, seed=0) for eps in self.eps]
        for eps in self.eps:
            if eps == 0 or self.eps.count(eps) > 1:
                wrong = "0: natural images are certified in any case" if eps == 0 else f"{eps} twice"
                raise InvalidInputError(f"eps holds {wrong}; give each budget > 0 once")
        for each in self.wanted:
            checks.real("radius", each)
        defense = self.built[self.defense]
        if self.certificate != DRAWS:
            _ = self.coverage  # refuses a defense that no certificate holds for
        if isinstance(defense, GaussianNoise) and any(each.surrogate != NONE for each in threats):
            raise InvalidInputError(
                f"attack={self.attack!r} goes through a quantizer, which {self.defense!r} has not; "
                f"give it surrogate={NONE}"
            )

    @property
    def sources(self) -> tuple[float, ...]:
        """The budgets behind the images that error bounds are for; 0: natural ones."""
        return (0.0, *self.eps) if self.certificate in (DRAWS, ALL) else ()

    def build(self, spec: str) -> Defense:
        return self.create(seed=0)

    def create(self, *, seed: int) -> Defense:
        defense = defense_from(self.defense, seed=seed)
        if defense is None:
            inside = ", ".join(defenses_inside(self.target.model))
            raise InvalidInputError(
                f"defense={self.defense!r} draws nothing, which leaves nothing to certify; give a defense, "
                f"one of {', '.join(list_all_defenses())}, or a model that vq.defend made"
                + (f", as it was made: {inside} is inside this one, which was changed" if inside else "")
            )
        return defense

    def described(self) -> Mapping[str, object]:
        sources = [
            SourceId(eps=eps, attack=ThreatId.of(self._threat(eps, seed=0)) if eps else NO_THREAT)
            for eps in self.sources
        ]
        return {
            **super().described(),
            "coverage": None if self.certificate == DRAWS else self.coverage,
            "sources": tuple(sources),
            "wanted": self.radii if self.certificate == SEQUENTIAL else None,
        }

    @staticmethod
    def cells_of(manifest: CertificationManifest) -> list[CertificationCell]:
        """The votes, then chunk after chunk the error bounds of every budget."""
        votes, batch = list[CertificationCell](), manifest.batch
        if manifest.coverage is not None:
            early = manifest.certificate == SEQUENTIAL
            size = block_size(manifest.n, batch=batch, sequential=early)
            votes = manifest.cells_of(SEQUENTIAL if early else VOTE, size)
        budgets = [source.eps for source in manifest.sources]
        return votes + manifest.cells_of(DRAWS, block_size(manifest.draws, batch=batch), budgets=budgets)

    @staticmethod
    def problem(manifest: CertificationManifest, record: CertificateRecord) -> str | None:
        if isinstance(record, VoteRecord):
            shares: tuple[float, ...] = (record.p_lower, record.p_y)
            counts: tuple[int, ...] = (record.top, record.right)
            most, answered, numbers = manifest.n, (record.label, record.selected), (record.radius, *shares)
            if isinstance(record, SequentialRecord):
                most = record.draws
                if most not in (looks := certificates.looks(draws=manifest.n)):
                    return f"draws={most} is none of the looks {looks}"
        else:
            assert isinstance(record, DrawsRecord)
            shares, counts = tuple(record.bounds.values()), (record.errors,)
            most, answered = manifest.draws, (record.label, record.label)
            numbers = (record.mean_l1, record.mean_truncated, record.variance_truncated, *shares)
            if not 0 <= record.distance <= record.eps + ROUNDING:
                return f"distance={record.distance} is not within eps={record.eps}"
        if (wrong := impossible_class(manifest.data, answered)) is not None:
            return wrong
        for count in counts:
            if not 0 <= count <= most:
                return f"{count} of {most} draws"
        for number in numbers:
            if not 0 <= number < math.inf:
                return f"{number} is not a finite number from 0 on"
        return next((f"{share} is not a share" for share in shares if not 0 <= share <= 1), None)

    def certified(
        self, cell: CertificationCell, images: Tensor, labels: Tensor, advance: Advance
    ) -> list[CertificateRecord]:
        if cell.eps is None:
            return [*self._vote_records(cell, images, labels, advance)]
        return [*self._draws_records(cell, cell.eps, images, labels, advance)]

    def cost(self, cell: CertificationCell) -> int:
        """How many draws are made, at most."""
        return (self.n0 + self.n if cell.eps is None else self.draws) * len(cell.images)

    def title(self, cell: CertificationCell) -> str:
        return "votes" if cell.eps is None else f"error bounds at eps {format_value(cell.eps)}"

    @cached_property
    def coverage(self) -> certificates.Coverage:
        """What the vote's certificate may assume of the defense."""
        return certificates.Coverage.of(**self.create(seed=0).certificate_terms())

    @property
    def radii(self) -> tuple[float, ...]:
        """The radii that a sequential certificate is to decide about."""
        return counting.decisive_radii(self.coverage, self.wanted, samples=self.n, alpha=self.alpha)

    def _vote_records(
        self, cell: CertificationCell, images: Tensor, labels: Tensor, advance: Advance
    ) -> Sequence[VoteRecord]:
        """The vote's certificates. A sequential one looks at the draws now and then and stops early; its
        looks share alpha. The other has one look, at all draws.
        """

        def count(purpose: str, places: Tensor, samples: int) -> Tensor:
            blocks = self._logits(cell, purpose, images[places.to(images.device)], samples, advance)
            return counting.count_classes(blocks, classes=len(self.target.images.classes))

        early = cell.certificate == SEQUENTIAL
        election = counting.elect(
            count, len(labels), coverage=self.coverage, selection=self.n0, samples=self.n, alpha=self.alpha,
            sequential=early, radii=self.wanted, also=(labels,), advance=advance,
        )  # fmt: skip
        selected, counts, radii = election.selected, election.counts, election.radii
        columns = {
            "label": labels,
            "selected": selected,
            "top": of_class(counts, selected),
            "right": of_class(counts, labels),
            "answer": torch.where(radii > 0, selected, certificates.ABSTAIN),
            "abstain": radii == 0,
            "radius": radii,
            "p_lower": election.lower[0],
            "p_y": election.lower[1],
        }
        if early:
            return SequentialRecord.of(cell, **columns, draws=election.samples)
        return VoteRecord.of(cell, **columns)

    def _draws_records(
        self, cell: CertificationCell, eps: float, images: Tensor, labels: Tensor, advance: Advance
    ) -> list[DrawsRecord]:
        moved = self._attacked(cell, eps, images, labels.to(images.device)) if eps else images
        reference = self.forward(images).double().softmax(-1).cpu()
        blocks = self._logits(cell, "draws", moved, self.draws, advance)
        drawn = (block.double().softmax(-1) for block in blocks)
        evidence = certificates.evidence(reference=reference, drawn=drawn, labels=labels)
        bounds = certificates.bounds_from(evidence, delta=self.delta)
        rows = torch.stack(list(bounds.values()), 1).tolist()
        return DrawsRecord.of(
            cell,
            eps=[eps] * len(labels),
            label=labels,
            distance=ball(NORM, eps).distance(moved, images),
            **{name: getattr(evidence, name) for name in EVIDENCE},
            bounds=[dict(zip(bounds, row, strict=True)) for row in rows],
        )

    def _attacked(self, cell: CertificationCell, eps: float, images: Tensor, labels: Tensor) -> Tensor:
        """The images x', found without any of the draws that certify them."""
        model = self.target.model
        if self._threat(eps, seed=0).surrogate == NONE:  # the same attack, whatever the defense
            seed = self.seed_for(replace(cell, defense=NONE), "attack")
            return self.store.bare(self._threat(eps, seed=seed), model, images, labels)
        chosen = self._threat(eps, seed=self.seed_for(cell, "attack"))
        defense = self.create(seed=self.seed_for(cell, "attacked draws")).to(images.device)
        return chosen(model, defense, images, labels)

    def seed_for(self, cell: CertificationCell, purpose: str) -> int:
        """The seed of the draws that serve one purpose in a cell."""
        return derived_seed(self.seed, cell.defense, cell.what, cell.images.start, purpose)

    def _threat(self, eps: float, *, seed: int) -> Threat:
        return threat(self.attack, ball(NORM, eps), seed=seed)

    def _logits(
        self, cell: CertificationCell, purpose: str, images: Tensor, draws: int, advance: Advance
    ) -> Iterator[Tensor]:
        """The logits of fresh draws, (some, N, classes) at a time, so that a million need no memory."""
        defense = self.create(seed=self.seed_for(cell, purpose)).to(images.device)
        return sampled_logits(self.forward, defense, images, draws, batch=self.batch, advance=advance)


def certify(
    model: nn.Module | str = BUNDLED,
    images: Tensor | str = SAMPLE_NAME,
    labels: Tensor | None = None,
    *,
    defense: DefenseLike | None = None,
    certificate: str = ALL,
    attack: str = "pgd:steps=20,surrogate=none",
    eps: float | Sequence[float] | None = None,
    bound_samples: int = 1000,
    delta: float = 0.005,
    selection: int = 100,
    samples: int = 10_000,
    alpha: float = 0.001,
    radii: Sequence[float] = (),
    seed: int = 0,
    batch: int = 500,
    precision: str = "float32",
    limit: int | None = None,
    data_dir: Path | str | None = None,
    device: str = "auto",
    out: Path | str | None = None,
    executor: Executor | None = None,
    progress: Progress = no_progress,
) -> CertificationSummary:
    """Prove what draws can prove about a defended classifier, image by image and for all of them.

    Args:
        model: a module from images in [0, 1] to logits, a model that `vq.defend` made, or the name of a
            classifier, as for `vq.evaluate`.
        images: (N, channels, height, width) in [0, 1], or the name of a data set.
        labels: (N,) classes, a tensor, array or list; none where images is the name of a data set.
        defense: "prd:noise=image,sigma=0.1", or "gaussian:sigma=0.1", noise alone, or a Defense. Without it,
            the one that the model has, or that the classifier's file says it was fine-tuned behind.
        certificate: "vote": the majority vote within an L2 radius, against every attack; "sequential": the
            same, with no more samples per image than it takes to decide about the radii; "draws": error
            bounds that hold for given images alone; "all": vote and draws.
        attack: attack that makes the images of "draws", in addition to the clean ones; no suite.
        eps: L-inf budget of that attack, or several (default: 8/255).
        bound_samples: samples behind an error bound, m in the paper.
        delta: probability that an error bound fails.
        selection: samples that choose the class of a vote.
        samples: other samples, which bound the probability of that class.
        alpha: probability that the certificate of a vote is wrong.
        radii: report the certified accuracy at these L2 radii (default: evenly up to the largest possible).
        seed: seed of every sample of defense and attack.
        batch: images per forward pass, one for each sample.
        precision: precision of the classifier: "float32", or "bf16", which is faster on a GPU.
        limit: use the first N images (default: all).
        data_dir, device, out, executor, progress: as of `vq.evaluate`.

    Returns:
        The vote's certified accuracies against the radius, and the error bounds of each budget.

    Raises:
        InvalidInputError: something given is wrong, or no certificate holds for the defense.

    Example:
        >>> noisy = "prd:sigma=0.1,tau=0.1"
        >>> found = vq.certify(defense=noisy, certificate="vote", selection=5, samples=20, limit=4)
        >>> found.vote.images, 0 < found.vote.largest_radius < 0.1
        (4, True)
    """
    with split_model(model, defense) as (classifier, (text,)):
        study = Certification(
            target=target_from(classifier, images, labels, limit=limit, data_dir=data_dir, device=device),
            defense=text,
            certificate=certificate,
            attack=attack,
            eps=tuple(eps) if isinstance(eps, Sequence) else (ball(NORM, eps).eps,),
            draws=checks.whole("bound_samples", bound_samples, least=1),
            delta=delta,
            n0=checks.whole("selection", selection, least=1),
            n=checks.whole("samples", samples, least=1),
            alpha=alpha,
            seed=seed,
            batch=batch,
            precision=precision,
            wanted=tuple(radii) if certificate == SEQUENTIAL else (),
        )
        recorded = run_study(study, out, executor=executor, progress=progress)
    return CertificationSummary.of(recorded, radii=radii)
