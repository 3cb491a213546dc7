"""The paper's attacks against those that know of the shield: compared on the same images, or not at all."""

from dataclasses import dataclass

from vqshield.core.display_names import NONE
from vqshield_paper.reports.provenance import section_title
from vqshield_paper.reports.rounding import share_decimals
from vqshield_paper.reproduction.model import Column, PartSummary, Row, Summary, Value

FAR_BELOW = 0.05
"""How much less must be left than by the attacks of the paper, and less than half, to be shown in red."""


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
    less = "" if largest.size > 0 else "no less: "
    stand_in = " Stand-ins were measured, not what the paper measured." if part.stand_in else ""
    return (
        f"{where} the same {largest.images} images the paper's protocol leaves {row.title} "
        f"{ignorant}, and an attack that knows of the shield "
        f"{less}{knowing}.{stand_in}"
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
