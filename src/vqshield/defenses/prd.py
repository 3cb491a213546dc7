"""pRD: disjoint patches (Algorithm 1 of the paper)."""

from typing import Any, ClassVar

from vqshield import checks
from vqshield.defenses.base import Defense
from vqshield.patches import Disjoint


class PRD(Defense):
    """Patched RandDisc: the image is tiled by s×s patches, and each becomes its nearest centre.

    size is the paper's s. An image whose sides are no multiples of s is padded at the bottom and the right
    (padding: "zero" or "reflect"), quantized, and cropped. The other parameters are those of every Defense.
    """

    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {
        "mnist": {"size": 2, "codes": 2},
        "cifar10": {"size": 2, "codes": 25},
        "cifar100": {"size": 2, "codes": 25},
        "imagenet": {"size": 2, "codes": 30},
    }

    def __init__(self, *, size: int = 2, padding: str = "zero", **settings: Any) -> None:
        super().__init__(**settings)
        self._grid = Disjoint(checks.whole("size", size, least=1), padding)

    @property
    def grid(self) -> Disjoint:
        """Disjoint s×s patches."""
        return self._grid

    def settings(self) -> dict[str, Any]:
        """What decides the output."""
        return {"size": self.grid.size, **super().settings(), "padding": self.grid.padding}
