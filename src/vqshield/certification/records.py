"""What a certification keeps of every image and of itself, and the cells that its work is cut into."""

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from torch import Tensor

from vqshield.certificates import Coverage
from vqshield.certificates.splitting import LEVELS
from vqshield.runs.manifests import DefenseId, SourceId, TargetManifest
from vqshield.runs.records import Key, Record
from vqshield.runs.study import chunks

VOTE, DRAWS, SEQUENTIAL, EXACT = "vote", "draws", "sequential", "exact l1"
EVIDENCE = ("margin", "mean_l1", "mean_truncated", "variance_truncated", "errors")
"""What draws show of an image: fields of `vqshield.certificates.Evidence`, and of its record."""
_IMAGES = 16  # draws made at once for each image of a cell, at least: without gradients this many more fit
_BATCHES = 40  # about this many batches a cell at most, after which its records are written
_SAVED = 8  # times fewer draws, about, where they may stop early


@dataclass(frozen=True, kw_only=True)
class CertificationCell:
    """The unit of work: one certificate of some images; eps: the attack's budget, for error bounds alone."""

    defense: str
    certificate: str
    images: range
    eps: float | None = None

    @property
    def what(self) -> str:
        """The certificate's name in a record's key."""
        return self.certificate if self.eps is None else f"{self.certificate} eps={self.eps}"

    @property
    def keys(self) -> list[Key]:
        """What its records are of."""
        return [(self.defense, self.what, image) for image in self.images]


class CertificateRecord(Record):
    """The certificate of one image; each kind is a dataclass, which fixes the order of the keys in a line."""

    image: int
    label: int
    certificate: str

    @property
    def key(self) -> Key:
        return self.defense, self.certificate, self.image

    @classmethod
    def of(cls, cell: CertificationCell, **columns: Tensor | Sequence[Any]) -> list[Self]:
        """The records of a cell, from a column for each of their fields."""
        values = [column.tolist() if isinstance(column, Tensor) else column for column in columns.values()]
        return [
            cls(**{"defense": cell.defense, "image": image, **dict(zip(columns, row, strict=True))})
            for image, *row in zip(cell.images, *values, strict=True)
        ]


@dataclass(frozen=True, kw_only=True)
class VoteRecord(CertificateRecord):
    """The worst-case L2 certificate of one image's majority vote.

    selected: the class that n0 draws chose; top, right: how many of the n fresh ones gave it, and the label.
    answer: the certified one, or ABSTAIN (-1); radius: how far it is certified, in L2.
    p_lower, p_y: lower bounds on the probabilities of the selected class and of the label.
    """

    image: int
    label: int
    selected: int
    top: int
    right: int
    answer: int
    abstain: bool
    radius: float
    p_lower: float
    p_y: float
    certificate: str = VOTE


@dataclass(frozen=True, kw_only=True)
class SequentialRecord(VoteRecord):
    """A vote's certificate that stopped drawing as soon as nothing was left to decide.

    draws: how many of the n there could have been; top and right are counts of these.
    """

    draws: int
    certificate: str = SEQUENTIAL


@dataclass(frozen=True, kw_only=True)
class DrawsRecord(CertificateRecord):
    """The error bounds of one given image x', which an attack with a budget of eps made, or nature (0).

    distance: how far x' is from the image; margin … errors: the evidence of m draws of x'.
    bounds: upper bounds on the error, by name; each holds for this x' alone.
    """

    eps: float
    image: int
    label: int
    distance: float
    margin: float
    mean_l1: float
    mean_truncated: float
    variance_truncated: float
    errors: int
    bounds: dict[str, float]
    certificate: str = DRAWS

    @property
    def key(self) -> Key:
        return self.defense, f"{self.certificate} eps={self.eps}", self.image


@dataclass(frozen=True, kw_only=True)
class L1Record(CertificateRecord):
    """The exact L1 certificate of one image.

    answer: what the vote of all shifts elects; top, second: the votes of the answer and of the next class.
    right: those of the label. steps: how many levels of change, over all values, cannot alter the answer.
    """

    image: int
    label: int
    answer: int
    top: int
    second: int
    right: int
    steps: int
    certificate: str = EXACT

    @property
    def radius(self) -> float:
        """The certified L1 radius for 8-bit images, itself included."""
        return self.steps / LEVELS

    @property
    def real_radius(self) -> float:
        """Below which L1 distance real-valued images are covered too."""
        return (self.steps + 1) / (2 * LEVELS)


_KINDS: Mapping[str, type[CertificateRecord]] = {
    VOTE: VoteRecord, DRAWS: DrawsRecord, SEQUENTIAL: SequentialRecord, EXACT: L1Record,
}  # fmt: skip


def parse_record(line: bytes) -> CertificateRecord:
    """A line of a record file, whatever certificate it is of."""
    return _KINDS[json.loads(line)["certificate"]].parse(line)


@dataclass(frozen=True, kw_only=True)
class CertificateManifest(TargetManifest, ABC):
    """What the records of a certification of any kind are of; values: of an image, pixels times channels."""

    defense: DefenseId
    seed: int
    batch: int
    precision: str
    values: int

    def __post_init__(self) -> None:
        if self.precision == "fp32":  # what earlier versions wrote
            object.__setattr__(self, "precision", "float32")

    @property
    def name(self) -> str:
        """What is certified."""
        return self.defense.name

    @property
    def subject(self) -> str:
        """What is certified, and with what, for a title."""
        data, classifier = self.data, self.classifier.described
        return f"{self.name} for {data.images} images of {data.name}, classifier {classifier}"

    @property
    @abstractmethod
    def cells(self) -> list[CertificationCell]:
        """All the work, in the order of the records."""

    def cells_of(
        self, certificate: str, draws: int, *, most: int, budgets: Sequence[float | None] = (None,)
    ) -> list[CertificationCell]:
        """The cells of one certificate: chunk after chunk of the images, each with every budget.

        draws: of each image; most: images of a chunk.
        """
        size = max(1, min(most, _BATCHES * self.batch // draws))
        return [
            CertificationCell(defense=self.defense.name, certificate=certificate, images=images, eps=eps)
            for images in chunks(self.data.images, size)
            for eps in budgets
        ]


@dataclass(frozen=True, kw_only=True)
class CertificationManifest(CertificateManifest):
    """What the records of certificates from draws are of."""

    certificate: str
    draws: int
    delta: float
    n0: int
    n: int
    alpha: float
    coverage: Coverage | None
    sources: tuple[SourceId, ...]
    wanted: tuple[float, ...] | None = field(default=None, metadata={"omit": True})

    @property
    def cells(self) -> list[CertificationCell]:
        """The votes, then chunk after chunk the error bounds of every budget."""
        votes, most = list[CertificationCell](), self.batch // _IMAGES
        if self.coverage is not None:
            early = self.certificate == SEQUENTIAL
            drawn = math.ceil(self.n / _SAVED) if early else self.n
            votes = self.cells_of(SEQUENTIAL if early else VOTE, drawn, most=most)
        budgets = [source.eps for source in self.sources]
        return votes + self.cells_of(DRAWS, self.draws, most=most, budgets=budgets)


@dataclass(frozen=True, kw_only=True)
class L1Manifest(CertificateManifest):
    """What the records of exact L1 certificates are of; shifts: all of them, each asked once."""

    after: DefenseId | None
    shifts: int

    @property
    def name(self) -> str:
        return self.defense.name if self.after is None else f"{self.defense.name} and {self.after.name}"

    @property
    def cells(self) -> list[CertificationCell]:
        return self.cells_of(EXACT, self.shifts, most=self.data.images)
