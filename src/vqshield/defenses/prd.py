"""RandDisc and pRD: disjoint patches (Algorithm 1 of the paper), of a single pixel or more."""

from collections.abc import Mapping
from typing import ClassVar

from vqshield.core import checks
from vqshield.core.settings import Setting
from vqshield.defenses.base import Gradient, Streams
from vqshield.defenses.quantizer import DEFAULT_NOISE, DefenseSettings, Noise, Quantizer
from vqshield.quantization.kernels.base import Init
from vqshield.quantization.patches import Disjoint, Padding
from vqshield.quantization.pixels import Range


class PRD(Quantizer):
    """Patched RandDisc: the image is tiled by s×s patches, and each becomes its nearest centre.

    Args:
        size: s, the side of a patch.
        padding: "zero" or "reflect". An image whose sides are not multiples of s is padded at the bottom and
            the right, quantized, and cropped.
        codes, sigma, tau, noise, iterations, init, tolerance, sample, backend, memory, seed, streams,
            range, surrogate: as of every Quantizer.

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

    _grid: Disjoint

    def __init__(
        self,
        *,
        size: int = 2,
        codes: int = 25,
        sigma: float = DEFAULT_NOISE,
        tau: float = DEFAULT_NOISE,
        noise: Noise = "patch",
        padding: Padding = "zero",
        iterations: int = 20,
        init: Init = "kmeans++",
        tolerance: float = 0.0,
        sample: int | None = None,
        backend: str = "auto",
        memory: int = 2**30,
        seed: int | None = None,
        streams: Streams = "fresh",
        range: Range = "raise",
        surrogate: str | Gradient | None = None,
    ) -> None:
        super().__init__(
            Disjoint(checks.whole("size", size, least=1), padding), codes=codes, sigma=sigma, tau=tau,
            noise=noise, iterations=iterations, init=init, tolerance=tolerance, sample=sample,
            backend=backend, memory=memory, seed=seed, streams=streams, range=range, surrogate=surrogate,
        )  # fmt: skip

    @property
    def padding(self) -> str:
        """How an image is padded to whole patches."""
        return self._grid.padding


class RandDisc(PRD):
    """Randomized discretization (Zhang & Liang 2019): every pixel becomes its nearest of k colours.

    It is PRD with patches of a single pixel.

    Args:
        codes, sigma, tau, noise, iterations, init, tolerance, sample, backend, memory, seed, streams,
            range, surrogate: as of every Quantizer.

    Example:
        >>> quantized = vq.RandDisc(codes=4, seed=0)(images[:1])
        >>> len(quantized[0].flatten(1).unique(dim=1).T)  # colours
        4
    """

    NAME = "randdisc"
    PRESETS: ClassVar[Mapping[str, DefenseSettings]] = {
        data: {"codes": preset["codes"]} for data, preset in PRD.PRESETS.items()
    }

    def __init__(
        self,
        *,
        codes: int = 25,
        sigma: float = DEFAULT_NOISE,
        tau: float = DEFAULT_NOISE,
        noise: Noise = "patch",
        iterations: int = 20,
        init: Init = "kmeans++",
        tolerance: float = 0.0,
        sample: int | None = None,
        backend: str = "auto",
        memory: int = 2**30,
        seed: int | None = None,
        streams: Streams = "fresh",
        range: Range = "raise",
        surrogate: str | Gradient | None = None,
    ) -> None:
        super().__init__(
            size=1, codes=codes, sigma=sigma, tau=tau, noise=noise, iterations=iterations, init=init,
            tolerance=tolerance, sample=sample, backend=backend, memory=memory, seed=seed, streams=streams,
            range=range, surrogate=surrogate,
        )  # fmt: skip

    def settings(self) -> dict[str, Setting]:
        return {name: value for name, value in super().settings().items() if name not in ("size", "padding")}
