"""swRD: sliding windows (Algorithm 2 of the paper)."""

from dataclasses import replace
from typing import Any, ClassVar

from vqshield import checks
from vqshield.clustering import Recipe
from vqshield.defenses.base import Defense
from vqshield.errors import InvalidInputError
from vqshield.patches import Sliding

WEIGHTS_FROM = ("clean", "noisy")
_BYTE_BETA = 65025  # the paper gives ImageNet's beta for pixels in 0 … 255: 255² times as small


class SWRD(Defense):
    """Sliding-window RandDisc: every s×s window becomes its nearest centre, and each pixel the weighted
    mean of itself in all quantized windows p̂_j that cover it, with weights softmax(−beta·‖p̂_j − p_j‖²).

    size is the paper's s. weights_from="clean" measures the distance to the window as it came, as the paper
    does; "noisy" to the window plus omega_j, the only choice that a worst-case certificate can cover. Without
    it the weights are clean where noise="patch" and noisy where the noise is on the image, since the windows
    are cut from that. The other parameters are those of every Defense.
    """

    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {
        "mnist": {"size": 2, "codes": 2, "beta": 5.0},
        "cifar10": {"size": 3, "codes": 25, "beta": 2.0},
        "cifar100": {"size": 3, "codes": 35, "beta": 2.0},
        "imagenet": {"size": 3, "codes": 30, "beta": 0.1 * _BYTE_BETA},
    }

    def __init__(
        self, *, size: int = 3, beta: float = 2.0, weights_from: str | None = None, **settings: Any
    ) -> None:
        super().__init__(**settings)
        self._grid = Sliding(checks.whole("size", size, least=1))
        self.beta = checks.real("beta", beta, most=checks.MOST_BETA)
        usual = "clean" if self.noise == "patch" else "noisy"
        self.weights_from = checks.one_of(
            "weights_from", usual if weights_from is None else weights_from, WEIGHTS_FROM
        )
        if self.noise != "patch" and self.weights_from == "clean" and self.beta > 0:
            raise InvalidInputError(
                f"weights_from='clean' should be 'noisy' where noise={self.noise!r}: windows of a noisy "
                "image have no clean form"
            )

    @property
    def grid(self) -> Sliding:
        """Every s×s window."""
        return self._grid

    def settings(self) -> dict[str, Any]:
        """What decides the output."""
        own = {"beta": self.beta, "weights_from": self.weights_from}
        return {"size": self.grid.size, **super().settings(), **own}

    def certificate_terms(self) -> dict[str, Any]:
        """What a worst-case certificate depends on; clean weights see the image past its noise."""
        return {**super().certificate_terms(), "weights_from": self.weights_from, "beta": self.beta}

    def recipe(self) -> Recipe:
        """The recipe of every defense, and how the windows are weighted."""
        return replace(super().recipe(), beta=self.beta, weights_from=self.weights_from)
