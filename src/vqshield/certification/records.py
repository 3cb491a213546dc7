"""What a certification keeps of every image and of itself, and the cells that its work is cut into."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from vqshield.certificates import Coverage
from vqshield.runs.manifests import DefenseId, SourceId, TargetManifest
from vqshield.runs.records import Key, Record

VOTE, DRAWS, SEQUENTIAL = "vote", "draws", "sequential"
_IMAGES = 16  # draws made at once for each image of a cell, at least: without gradients this many more fit
_BATCHES = 40  # about this many batches a cell at most, after which its records are written
_SAVED = 8  # times fewer draws, about, where they may stop early


@dataclass(frozen=True, kw_only=True)
class VoteRecord(Record):
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

    @property
    def key(self) -> Key:
        return self.defense, self.certificate, self.image


@dataclass(frozen=True, kw_only=True)
class DrawsRecord(Record):
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
class SequentialRecord(VoteRecord):
    """A vote's certificate that stopped drawing as soon as nothing was left to decide.

    draws: how many of the n there could have been; top and right are counts of these.
    """

    draws: int
    certificate: str = SEQUENTIAL


CertificateRecord = VoteRecord | DrawsRecord
_KINDS: Mapping[str, type[VoteRecord] | type[DrawsRecord]] = {
    VOTE: VoteRecord, DRAWS: DrawsRecord, SEQUENTIAL: SequentialRecord,
}  # fmt: skip


def parse_record(line: bytes) -> CertificateRecord:
    """A line of a record file, whatever certificate it is of."""
    return _KINDS[json.loads(line)["certificate"]].parse(line)


@dataclass(frozen=True, kw_only=True)
class CertificationCell:
    """The unit of work: one certificate of some images; eps is None for the vote's."""

    defense: str
    eps: float | None
    images: range
    sequential: bool = False

    @property
    def what(self) -> str:
        """The certificate's name in a record's key."""
        if self.eps is None:
            return SEQUENTIAL if self.sequential else VOTE
        return f"{DRAWS} eps={self.eps}"

    @property
    def keys(self) -> list[Key]:
        """What its records are of."""
        return [(self.defense, self.what, image) for image in self.images]


@dataclass(frozen=True, kw_only=True)
class CertificationManifest(TargetManifest):
    """What the records of a certification are of; values: of an image, pixels times channels."""

    certificate: str
    draws: int
    delta: float
    n0: int
    n: int
    alpha: float
    seed: int
    batch: int
    precision: str
    defense: DefenseId
    coverage: Coverage | None
    sources: tuple[SourceId, ...]
    values: int
    wanted: tuple[float, ...] | None = field(default=None, metadata={"omit": True})

    @property
    def cells(self) -> list[CertificationCell]:
        """The votes, then chunk after chunk the error bounds of every budget."""
        count, batch, name = self.data.images, self.batch, self.defense.name

        def chunks(draws: int) -> list[range]:
            size = max(1, min(batch // _IMAGES, _BATCHES * batch // draws))
            return [range(first, min(first + size, count)) for first in range(0, count, size)]

        early = self.certificate == SEQUENTIAL
        votes = chunks(math.ceil(self.n / _SAVED) if early else self.n) if self.coverage else []
        return [
            CertificationCell(defense=name, eps=None, images=images, sequential=early) for images in votes
        ] + [
            CertificationCell(defense=name, eps=source.eps, images=images)
            for images in chunks(self.draws)
            for source in self.sources
        ]
