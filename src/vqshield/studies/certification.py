"""Certificates of a defended classifier, image by image, in a run that may stop at any moment.

As in an evaluation, every cell of work is a pure function of the specification: a run that was stopped and
resumed writes the same bytes as one that was not.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vqshield.certificates import Evidence, bounds_from, certify_vote, clopper_pearson_lower, evidence
from vqshield.draws import outputs
from vqshield.environment import environment
from vqshield.runs.adversarial import AdversarialStore
from vqshield.runs.records import RecordFolder
from vqshield.runs.study import Report, ResumableWork
from vqshield.runs.target import Subject
from vqshield.seeds import derived_seed
from vqshield.settings import format_value
from vqshield.studies.certification_forward import forward_of
from vqshield.studies.certification_records import (
    CertificateRecord,
    DrawsRecord,
    VoteRecord,
    parse_record,
)
from vqshield.studies.certification_settings import Cell, CertificationSettings, cells, coverage_of
from vqshield.studies.specification import NONE
from vqshield.threats import threat


class Certification(ResumableWork[Cell, CertificateRecord]):
    """Every certificate that was asked for, of every image; run() writes the records, or goes on with them.

    Draws that an attack is made with, draws that choose a vote's answer and draws that certify have seeds of
    their own: what is certified is fixed before the draws that certify it. shared: a folder that keeps the
    images of attacks that ignore the defense for other runs and processes.
    """

    def __init__(
        self,
        settings: CertificationSettings,
        subject: Subject,
        folder: Path,
        report: Report = lambda *_: None,
        *,
        shared: Path | None = None,
    ) -> None:
        super().__init__(report)
        self.settings, self.subject = settings, subject
        first = subject.data.floats(slice(1))
        settings.create(seed=0).streams(first)  # is the image large enough for it?
        self.specification: dict[str, Any] = {
            **subject.described(),
            **settings.described(),
            "values": first.numel(),
            "machine": environment(subject.device),
        }
        self.cells: Sequence[Cell] = cells(self.specification)
        self.records: RecordFolder[CertificateRecord] = RecordFolder(
            folder, [cell.keys for cell in self.cells], parse_record
        )
        self._classifier = forward_of(subject.classifier, device=subject.device, precision=settings.precision)
        self._known = AdversarialStore(self.specification, shared)
        self._drawn = 0  # of the cell that is being measured

    def measure(self, cell: Cell) -> list[CertificateRecord]:
        """The records of one cell, in the order of its images."""
        self._drawn = 0
        data, place = self.subject.data, self.subject.device
        part = slice(cell.images.start, cell.images.stop)
        images, labels = data.floats(part).to(place), data.labels[part]
        if cell.eps is None:
            return self._votes(cell, images, labels)
        return self._error_bounds(cell, cell.eps, images, labels)

    def cost(self, cell: Cell) -> int:
        """How many draws it is."""
        draws = self.settings.n0 + self.settings.n if cell.eps is None else self.settings.draws
        return draws * len(cell.images)

    def title(self, cell: Cell) -> str:
        """Which certificate."""
        return "votes" if cell.eps is None else f"error bounds at eps {format_value(cell.eps)}"

    def _votes(self, cell: Cell, images: Tensor, labels: Tensor) -> list[CertificateRecord]:
        options, covered = self.settings, coverage_of(self.settings.create(seed=0))
        selection = self._counts(cell, "selection", images, options.n0)
        estimation = self._counts(cell, "estimation", images, options.n)
        votes = certify_vote(
            selection_counts=selection, estimation_counts=estimation, alpha=options.alpha,
            sigma_eff=covered.sigma_eff, copies=covered.copies,
        )  # fmt: skip
        selected = selection.argmax(-1)
        right = estimation.gather(-1, labels[:, None])[:, 0]
        p_y = clopper_pearson_lower(count=right, draws=options.n, delta=options.alpha)
        return [
            VoteRecord(
                defense=cell.defense,
                image=image,
                label=int(labels[number]),
                selected=int(selected[number]),
                top=int(estimation[number, selected[number]]),
                right=int(right[number]),
                answer=int(votes.answers[number]),
                abstain=bool(votes.radii[number] == 0),
                radius=float(votes.radii[number]),
                p_lower=float(votes.probabilities[number]),
                p_y=float(p_y[number]),
            )
            for number, image in enumerate(cell.images)
        ]

    def _error_bounds(
        self, cell: Cell, eps: float, images: Tensor, labels: Tensor
    ) -> list[CertificateRecord]:
        options = self.settings
        moved = self._attacked(cell, eps, images, labels) if eps else images
        reference = self._classifier(images).double().softmax(-1).cpu()
        blocks = self._logits(cell, "draws", moved, options.draws)
        seen = evidence_of_blocks(reference, (block.double().softmax(-1) for block in blocks), labels)
        bounds = bounds_from(seen, delta=options.delta)
        distances = options.ball(eps).distance(moved, images)
        return [
            DrawsRecord(
                defense=cell.defense,
                eps=eps,
                image=image,
                label=int(labels[number]),
                distance=float(distances[number]),
                margin=float(seen.margin[number]),
                mean_l1=float(seen.mean_l1[number]),
                mean_truncated=float(seen.mean_truncated[number]),
                variance_truncated=float(seen.variance_truncated[number]),
                errors=int(seen.errors[number]),
                bounds={name: float(values[number]) for name, values in bounds.items()},
            )
            for number, image in enumerate(cell.images)
        ]

    def _attacked(self, cell: Cell, eps: float, images: Tensor, labels: Tensor) -> Tensor:
        """The images x', found without any of the draws that certify them."""
        (described,) = (each["attack"] for each in self.specification["sources"] if each["eps"] == eps)
        if described["surrogate"] != NONE:
            return self._through(cell, eps, images, labels)
        bare = replace(cell, defense=NONE)  # the same attack, whatever the defense
        return self._known.images(
            lambda: self._through(bare, eps, images, labels),
            natural=images,
            labels=labels,
            threat=described,
            ball=self.settings.ball(eps),
            seed=self._seed(bare, "attack"),
        )

    def _through(self, cell: Cell, eps: float, images: Tensor, labels: Tensor) -> Tensor:
        """The attack on the classifier behind the defense; NONE names one that the attack ignores."""
        options = self.settings
        chosen = threat(options.attack, options.ball(eps), seed=self._seed(cell, "attack"))
        shield = options.create(seed=self._seed(cell, "attacked draws")).to(images.device)
        return chosen(self.subject.classifier, shield, images, labels.to(images.device))

    def _counts(self, cell: Cell, purpose: str, images: Tensor, draws: int) -> Tensor:
        """How often each class came out, (N, classes)."""
        found = torch.zeros(len(images), len(self.subject.data.classes), dtype=torch.int64)
        for block in self._logits(cell, purpose, images, draws):
            answers = block.argmax(-1).T  # (N, draws of the block)
            found.scatter_add_(1, answers, torch.ones_like(answers))
        return found

    def _logits(self, cell: Cell, purpose: str, images: Tensor, draws: int) -> Iterator[Tensor]:
        """The logits of fresh draws, (some, N, classes) at a time, so that a million need no memory."""
        shield = self.settings.create(seed=self._seed(cell, purpose)).to(images.device)
        batch = self.settings.batch

        def model(images: Tensor) -> Tensor:
            return self._classifier(shield(images))

        some = max(1, batch // len(images))
        for start in range(0, draws, some):
            block = outputs(model, images, runs=min(some, draws - start), batch=batch).cpu()
            self._drawn += block.shape[0] * block.shape[1]
            self._tell(cell, self._drawn)
            yield block

    def _seed(self, cell: Cell, purpose: str) -> int:
        return derived_seed(self.settings.seed, cell.defense, cell.what, cell.images.start, purpose)


def evidence_of_blocks(reference: Tensor, blocks: Iterable[Tensor], labels: Tensor) -> Evidence:
    """What `evidence` finds in all the draws, given as softmax outputs (some, N, classes) at a time.

    Each block is one call, as if every draw were an image of its own: a thousand calls for a few images each
    would cost more time than a GPU takes for the draws.
    """
    single = []
    for block in blocks:
        some = len(block)
        single.append(
            evidence(
                reference=reference.repeat(some, 1), drawn=[block.flatten(0, 1)], labels=labels.repeat(some)
            )
        )

    def each(name: str) -> Tensor:
        return torch.cat([getattr(part, name).view(-1, len(labels)) for part in single])  # (draws, N)

    truncated = each("mean_truncated")
    return Evidence(
        draws=len(truncated),
        margin=single[0].margin[: len(labels)],
        mean_l1=each("mean_l1").mean(0),
        mean_truncated=truncated.mean(0).clamp(max=1),  # rounding may leave a mean of ones just above 1
        variance_truncated=truncated.var(0) if len(truncated) > 1 else torch.zeros_like(truncated[0]),
        errors=each("errors").sum(0),
    )
