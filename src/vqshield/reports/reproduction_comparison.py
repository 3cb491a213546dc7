"""The paper's attacks against those that know of the shield: compared on the same images, or not at all."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vqshield.reports.reproduction_parts import KNOWING, figure

FAR_BELOW = 0.05
"""At least so much less is left than by the attacks of the paper, and less than half: shown in red."""


@dataclass(frozen=True, kw_only=True)
class Gap:
    """What attacks that ignore a shield leave, the strongest of them, and what one that knows it leaves."""

    ignorant: float
    knowing: float
    images: int
    """How many images both are over, the same ones."""

    @property
    def size(self) -> float:
        """How much more the attacks that ignore the shield leave."""
        return self.ignorant - self.knowing

    @property
    def far_below(self) -> bool:
        """Whether the figure of the attack that knows is another one, not a little less."""
        return self.knowing < self.ignorant / 2 and self.size >= FAR_BELOW


def on_same_images(protocol: Mapping[str, Any], other: Mapping[str, Any]) -> tuple[float, float, int] | None:
    """Ours of both over the same images, and how many; None where they were measured on others.

    A suite sees fewer images than the paper's protocol, whose figures therefore say what was found on just
    those ("paired"); a figure that says so itself is the protocol's too, and needs no such help.
    """
    value, images = protocol.get("paired"), protocol.get("paired_n")
    if value is None or other.get("paired") is not None:
        value, images = protocol.get("ours"), protocol.get("n")
    if value is None or other.get("ours") is None or images is None or images != other.get("n"):
        return None
    return value, other["ours"], images


def gap(part: Mapping[str, Any], row: Mapping[str, Any], column: Mapping[str, Any]) -> Gap | None:
    """What an attack that knows of a shield leaves, beside the paper's; None where that means nothing."""
    if part["unit"] != "%" or row.get("literature") or not _is_attack(column, KNOWING):
        return None
    knowing = figure(row, column["key"])
    ignorant = [figure(row, each["key"]) for each in part["columns"] if _is_attack(each, ("ignorant",))]
    pairs = [on_same_images(each, knowing) for each in ignorant if each.get("ours") is not None]
    known = [pair for pair in pairs if pair is not None]
    if not known or len(known) < len(pairs):
        return None  # an attack without a figure on these images might be the strongest
    least, left, images = min(known)
    return Gap(ignorant=least, knowing=left, images=images)


def _is_attack(column: Mapping[str, Any], levels: tuple[str, ...]) -> bool:
    return column["level"] in levels and not column.get("difference")
