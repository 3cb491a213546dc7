"""Ours against the paper's values, and the paper's attacks against those that know of the shield.

Attacks are compared on the same images, or not at all.
"""

from dataclasses import dataclass
from typing import Literal

from vqshield.core.display_names import NONE
from vqshield_paper.reports.provenance import section_title
from vqshield_paper.reports.rounding import share_decimals
from vqshield_paper.reproduction.model import Column, PartSummary, Row, Summary, Value

FAR_BELOW = 0.05
"""How much less must be left than by the attacks of the paper, and less than half, to be shown in red."""

AGREES, DIFFERS = 5.0, 25.0
"""The largest mean distances from the paper of a result that agrees, and of one that differs."""
RULE = (
    "The mean distance is over all values that both the paper and we have: in points where values are "
    "percentages, else in percent of the paper's mean value. "
    f"A result agrees up to {AGREES:g}, differs up to {DIFFERS:g}, and is contradicted beyond. "
    "The data set with the worst verdict counts. Results on other data than the paper's count only where "
    "there are no others."
)
Verdict = Literal["agrees", "differs", "contradicted", "not compared"]
VERDICTS: tuple[Verdict, ...] = ("agrees", "differs", "contradicted", "not compared")


@dataclass(frozen=True, kw_only=True)
class Distance:
    """How far the values of a part are from the paper's.

    Attributes:
        mean: absolute, in points, or in percent of the paper's mean value. values: how many are compared.
    """

    mean: float
    values: int
    unit: Literal["points", "%"]

    @property
    def verdict(self) -> Verdict:
        """By RULE; a mean of rounded percentages may be off in its last bits."""
        mean = round(self.mean, 6)
        return "agrees" if mean <= AGREES else "differs" if mean <= DIFFERS else "contradicted"

    @property
    def text(self) -> str:
        """As people read it: "5.1 points from the paper on average (15 values)"."""
        mean = f"{self.mean:,.{0 if self.mean >= 100 else 1}f}"
        unit = "points from the paper" if self.unit == "points" else "% from the paper"
        return f"{mean} {unit} on average ({self.values} values)"


def distance(part: PartSummary) -> Distance | None:
    """How far a part is from the paper; None where the two have no value in common."""
    pairs = [
        (value.ours, value.paper)
        for row, _, value in part.filled()
        if not row.literature and value.ours is not None and value.paper is not None
    ]
    if not pairs:
        return None
    total = sum(abs(ours - paper) for ours, paper in pairs)
    if part.unit == "%":
        return Distance(mean=100 * total / len(pairs), values=len(pairs), unit="points")
    size = sum(abs(paper) for _, paper in pairs)
    return Distance(mean=100 * total / size, values=len(pairs), unit="%")


def distances(summary: Summary) -> list[tuple[PartSummary, Distance]]:
    """The parts that can be compared with the paper; first the one that decides by RULE."""
    found = [(part, far) for part in summary.parts if (far := distance(part)) is not None]

    def rank(entry: tuple[PartSummary, Distance]) -> tuple[bool, int, float]:
        part, far = entry
        return bool(part.stand_in), -VERDICTS.index(far.verdict), -far.mean

    return sorted(found, key=rank)


def verdict(summary: Summary) -> Verdict:
    """Whether a result of the paper came out, by RULE."""
    return next((far.verdict for _, far in distances(summary)), "not compared")


@dataclass(frozen=True, kw_only=True)
class Gap:
    """What attacks that ignore a shield leave, the strongest of them, and what one that knows it leaves.

    Attributes:
        images: how many images both are over, the same ones.
    """

    ignorant: float
    knowing: float
    images: int

    @property
    def size(self) -> float:
        """How much more the attacks that ignore the shield leave."""
        return self.ignorant - self.knowing

    @property
    def far_below(self) -> bool:
        """Whether the attack that knows leaves another number, not a little less."""
        return self.knowing < self.ignorant / 2 and self.size >= FAR_BELOW


def headline(summary: Summary) -> str | None:
    """The largest gap of all; None where no values can be compared."""
    gaps = [
        (found, part, row)
        for part in summary.parts
        for row in part.rows
        if row.defense not in ("", NONE)
        for column in part.columns
        if (found := gap(part, row, column))
    ]
    if not gaps:
        return None
    largest, part, row = max(gaps, key=lambda each: each[0].size)
    where = f"{section_title(part)}: on" if len(summary.parts) > 1 else "On"
    places = min(1, share_decimals(largest.images))
    ignorant, knowing = (f"{100 * each:.{places}f} %" for each in (largest.ignorant, largest.knowing))
    less = "" if largest.size > 0 else "no less, "
    stand_in = " These are other data or another classifier than the paper's." if part.stand_in else ""
    return (
        f"{where} the same {largest.images} images, {row.title} has {ignorant} under the paper's protocol "
        f"and {less}{knowing} under an adaptive attack.{stand_in}"
    )


def gap(part: PartSummary, row: Row, column: Column) -> Gap | None:
    """Accuracy under an adaptive attack, with the paper's value; None where that means nothing."""
    if part.unit != "%" or row.literature or column.difference or not column.knowing:
        return None
    ignorant = [
        row.value(each.key) for each in part.columns if each.level == "ignorant" and not each.difference
    ]
    pairs = [on_same_images(each, row.value(column.key)) for each in ignorant if each.ours is not None]
    known = [pair for pair in pairs if pair is not None]
    if not known or len(known) < len(pairs):
        return None  # an attack without a value on these images might be the strongest
    least, left, images = min(known)
    return Gap(ignorant=least, knowing=left, images=images)


def on_same_images(protocol: Value, other: Value) -> tuple[float, float, int] | None:
    """Ours of both over the same images, and how many; None where they were measured on others.

    A suite sees fewer images than the paper's protocol, whose values therefore say what was found on just
    those ("paired"); a value that says so itself is the protocol's too, and needs no such help.
    """
    value, images = protocol.paired, protocol.paired_n
    if value is None or other.paired is not None:
        value, images = protocol.ours, protocol.n
    if value is None or other.ours is None or images is None or images != other.n:
        return None
    return value, other.ours, images
