"""pRD: disjoint patches (Algorithm 1 of the paper)."""

from collections.abc import Mapping
from typing import ClassVar

from vqshield.core import checks
from vqshield.core.settings import Setting
from vqshield.defenses.base import Gradient
from vqshield.defenses.quantizer import DEFAULT_NOISE, DefenseSettings, Quantizer
from vqshield.quantization.patches import Disjoint


class PRD(Quantizer):
    """Patched RandDisc: the image is tiled by s×s patches, and each becomes its nearest centre.

    Args:
        size: s, the side of a patch.
        padding: "zero" or "reflect". An image whose sides are no multiples of s is padded at the bottom and
            the right, quantized, and cropped.
        codes, sigma, tau, noise, iterations, init, tolerance, sample, backend, memory, seed, streams,
            range, surrogate: as of every Quantizer.

    Raises:
        InvalidInputError: a setting that cannot work.

    Example:
        >>> vq.PRD(size=2, codes=25, seed=0)(images).shape
        torch.Size([8, 3, 32, 32])
    """

    NAME = "prd"
    PRESETS: ClassVar[Mapping[str, DefenseSettings]] = {
        "mnist": {"size": 2, "codes": 2},
        "cifar10": {"size": 2, "codes": 25},
        "cifar100": {"size": 2, "codes": 25},
        "imagenet": {"size": 2, "codes": 30},
    }

    def __init__(
        self,
        *,
        size: int = 2,
        codes: int = 25,
        sigma: float = DEFAULT_NOISE,
        tau: float = DEFAULT_NOISE,
        noise: str = "patch",
        padding: str = "zero",
        iterations: int = 20,
        init: str = "kmeans++",
        tolerance: float = 0.0,
        sample: int | None = None,
        backend: str = "auto",
        memory: int = 2**30,
        seed: int | None = None,
        streams: str = "fresh",
        range: str = "raise",
        surrogate: str | Gradient | None = None,
    ) -> None:
        super().__init__(
            codes=codes, sigma=sigma, tau=tau, noise=noise, iterations=iterations, init=init,
            tolerance=tolerance, sample=sample, backend=backend, memory=memory, seed=seed, streams=streams,
            range=range, surrogate=surrogate,
        )  # fmt: skip
        self._grid = Disjoint(checks.whole("size", size, least=1), padding)

    @property
    def grid(self) -> Disjoint:
        return self._grid

    @property
    def padding(self) -> str:
        """How an image is padded to whole patches."""
        return self._grid.padding

    def settings(self) -> dict[str, Setting]:
        return {"size": self.grid.size, **super().settings(), "padding": self.grid.padding}
