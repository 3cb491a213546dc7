"""What was certified of each image: counts and sums of its draws, and what they prove."""

import json
from dataclasses import dataclass

from vqshield.runs.records import Key, Line
from vqshield.studies.certification_settings import DRAWS, VOTE


@dataclass(frozen=True, kw_only=True)
class VoteRecord(Line):
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
        """What it is of."""
        return self.defense, self.certificate, self.image


@dataclass(frozen=True, kw_only=True)
class DrawsRecord(Line):
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
        """What it is of."""
        return self.defense, f"{self.certificate} eps={self.eps}", self.image


CertificateRecord = VoteRecord | DrawsRecord


def parse_record(line: bytes) -> CertificateRecord:
    """The record of a line, of either kind."""
    kinds: dict[str, type[VoteRecord] | type[DrawsRecord]] = {VOTE: VoteRecord, DRAWS: DrawsRecord}
    return kinds[dict(json.loads(line))["certificate"]].parse(line)
