"""The records of certificates, the manifests of their runs, and the cells that the work is cut into."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from torch import Tensor

from vqshield.certificates import Coverage
from vqshield.certificates.splitting import LEVELS
from vqshield.runs.manifests import DefenseId, SourceId, TargetManifest
from vqshield.runs.records import Key, Record
from vqshield.runs.study import chunks
from vqshield.voting.counting import SEQUENTIAL, VOTE

DRAWS, EXACT = "draws", "exact l1"
EVIDENCE = ("margin", "mean_l1", "mean_truncated", "variance_truncated", "errors")
"""What draws show of an image: fields of `vqshield.certificates.Evidence`, and of its record."""


@dataclass(frozen=True, kw_only=True)
class CertificationCell:
    """The unit of work: one certificate of some images; eps: the attack's budget, of error bounds."""

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
        return [(self.defense, self.what, image) for image in self.images]


class CertificateRecord(Record):
    """The certificate of one image; each kind is a dataclass that fixes the order of the keys in a line."""

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
    """The worst-case L2 certificate of one image's majority vote."""

    image: int
    label: int
    selected: int  # the class that n0 draws chose
    top: int  # how many of the n fresh draws gave it
    right: int  # and how many the label
    answer: int  # the certified class, or ABSTAIN (-1)
    abstain: bool
    radius: float  # in L2
    p_lower: float  # lower bound on the probability of the selected class
    p_y: float  # and of the label
    certificate: str = VOTE


@dataclass(frozen=True, kw_only=True)
class SequentialRecord(VoteRecord):
    """A vote's certificate that stopped drawing as soon as nothing was left to decide."""

    draws: int  # of the n that there could have been; top and right are counts of these
    certificate: str = SEQUENTIAL


@dataclass(frozen=True, kw_only=True)
class DrawsRecord(CertificateRecord):
    """The error bounds of one image x', which an attack with a budget of eps made (0: a clean image).

    The fields from margin to errors are the evidence of m draws of x'.
    """

    eps: float
    image: int
    label: int
    distance: float  # of x' from the image
    margin: float
    mean_l1: float
    mean_truncated: float
    variance_truncated: float
    errors: int
    bounds: dict[str, float]  # upper bounds on the error of this x', by name
    certificate: str = DRAWS

    @property
    def key(self) -> Key:
        return self.defense, f"{self.certificate} eps={self.eps}", self.image


@dataclass(frozen=True, kw_only=True)
class L1Record(CertificateRecord):
    """The exact L1 certificate of one image."""

    image: int
    label: int
    answer: int  # of the vote of all shifts
    top: int  # votes for the answer
    second: int  # for the next class
    right: int  # for the label
    steps: int  # levels of change, over all values, that cannot alter the answer
    certificate: str = EXACT

    @property
    def radius(self) -> float:
        """The certified L1 radius for 8-bit images, itself included."""
        return self.steps / LEVELS

    @property
    def real_radius(self) -> float:
        """Below which L1 distance real-valued images are covered too."""
        return (self.steps + 1) / (2 * LEVELS)


KINDS: dict[str, type[CertificateRecord]] = {
    kind.certificate: kind for kind in (VoteRecord, DrawsRecord, SequentialRecord, L1Record)
}
"""The type of a record by its certificate."""


@dataclass(frozen=True, kw_only=True)
class CertificateManifest(TargetManifest):
    """What the records of a certification of any kind are of."""

    defense: DefenseId
    seed: int
    batch: int
    precision: str
    values: int  # of an image: pixels times channels

    def __post_init__(self) -> None:
        if self.precision == "fp32":  # what earlier versions wrote
            object.__setattr__(self, "precision", "float32")

    @property
    def name(self) -> str:
        return self.defense.name

    @property
    def subject(self) -> str:
        data, classifier = self.data, self.classifier.described
        return f"{self.name} for {data.images} images of {data.name}, classifier {classifier}"

    def cells_of(
        self, certificate: str, size: int, *, budgets: Sequence[float | None] = (None,)
    ) -> list[CertificationCell]:
        """The cells of a certificate: chunks of so many images, each with every budget."""
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


@dataclass(frozen=True, kw_only=True)
class L1Manifest(CertificateManifest):
    """What the records of exact L1 certificates are of."""

    after: DefenseId | None
    shifts: int  # all of them, each classified once

    @property
    def name(self) -> str:
        return self.defense.name if self.after is None else f"{self.defense.name} and {self.after.name}"
