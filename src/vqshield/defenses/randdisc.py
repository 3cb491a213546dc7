"""RandDisc: single pixels, the defense that pRD and swRD generalise (s = 1)."""

from typing import Any, ClassVar

from vqshield.defenses.prd import PRD


class RandDisc(PRD):
    """Randomized discretization (Zhang & Liang 2019): every pixel becomes its nearest of k colours.

    The parameters are those of every Defense; it is PRD with patches of a single pixel.
    """

    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {
        "mnist": {"codes": 2},
        "cifar10": {"codes": 25},
        "cifar100": {"codes": 25},
        "imagenet": {"codes": 30},
    }

    def __init__(self, **settings: Any) -> None:
        super().__init__(size=1, **settings)

    def settings(self) -> dict[str, Any]:
        """What decides the output."""
        shared = super().settings()
        return {name: value for name, value in shared.items() if name not in ("size", "padding")}
