"""swRD: sliding windows (Algorithm 2 of the paper)."""

from collections.abc import Callable, Mapping
from typing import ClassVar

from vqshield.core import checks
from vqshield.core.errors import InvalidInputError
from vqshield.defenses.base import CertificateTerms, Gradient, Streams
from vqshield.defenses.quantizer import DEFAULT_NOISE, DefenseSettings, Noise, Quantizer
from vqshield.quantization.kernels.base import Init, WeightsFrom
from vqshield.quantization.patches import Sliding
from vqshield.quantization.pixels import Range

_BYTE_BETA = 65025  # the paper gives ImageNet's beta for pixels in 0 … 255: 255² times as small


class SWRD(Quantizer):
    """Sliding-window RandDisc: every s×s window becomes its nearest centre, and each pixel the weighted
    mean of itself in all quantized windows p̂_j that cover it, with weights softmax(−beta·‖p̂_j − p_j‖²).

    Args:
        size: s, the side of a window.
        beta: how much a window that its centre fits well counts for more; 0 weights all alike.
        weights_from: "clean" measures the distance to the window itself, as the paper does; "noisy" to the
            window plus omega_j, the only choice that a worst-case certificate can cover. None is "clean"
            where noise="patch" and "noisy" where the noise is on the image, since the windows are cut from
            that.
        codes, sigma, tau, noise, iterations, init, tolerance, sample, backend, memory, seed, streams,
            range, surrogate: as of every Quantizer.

    Example:
        >>> defense = vq.SWRD(size=3, codes=25, seed=0)
        >>> quantized = defense(images)
        >>> quantized.shape
        torch.Size([8, 3, 32, 32])
        >>> torch.equal(quantized, defense(images))  # every call draws its own noise
        False
    """

    NAME = "swrd"
    PRESETS: ClassVar[Mapping[str, DefenseSettings]] = {
        "mnist": {"size": 2, "codes": 2, "beta": 5.0},
        "cifar10": {"size": 3, "codes": 25, "beta": 2.0},
        "cifar100": {"size": 3, "codes": 35, "beta": 2.0},
        "imagenet": {"size": 3, "codes": 30, "beta": 0.1 * _BYTE_BETA},
    }

    HARDENED: ClassVar[Mapping[str, DefenseSettings]] = {
        "cifar10": {"size": 3, "codes": 25, "beta": 2.0, "noise": "shared", "sigma": 0.06, "tau": 0.06},
    }
    LIGHT: ClassVar[Mapping[str, DefenseSettings]] = {"cifar10": {"size": 3, "codes": 25, "beta": 32.0}}
    beta: float
    weights_from: WeightsFrom

    def __init__(
        self,
        *,
        size: int = 3,
        codes: int = 25,
        beta: float = 2.0,
        sigma: float = DEFAULT_NOISE,
        tau: float = DEFAULT_NOISE,
        noise: Noise = "patch",
        weights_from: WeightsFrom | None = None,
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
        usual: WeightsFrom = "clean" if noise == "patch" else "noisy"
        super().__init__(
            Sliding(checks.whole("size", size, least=1)), codes=codes, sigma=sigma, tau=tau, noise=noise,
            iterations=iterations, init=init, tolerance=tolerance, sample=sample, beta=beta,
            weights_from=usual if weights_from is None else weights_from, backend=backend,
            memory=memory, seed=seed, streams=streams, range=range, surrogate=surrogate,
        )  # fmt: skip

    @classmethod
    def hardened(cls, data: str, *, light: bool = False, seed: int | None = None) -> "SWRD":
        """The defense that a search chose for a data set, for a classifier that is fine-tuned behind it.

        docs/threats.md compares its accuracy under attack with that of noise alone. With a classifier that
        was not tuned for it, it costs about as much clean accuracy as `vq.SWRD()`.

        Args:
            data: "cifar10", whose bundled classifier is `vqshield.classifiers.small_cifar10_hardened()`.
            light: without noise on the image: higher clean accuracy, and lower accuracy under query attacks.
                The bundled classifier was not tuned behind it; `vq.harden` tunes yours.
            seed: as of every Defense.

        Example:
            >>> vq.SWRD.hardened("cifar10").settings()["noise"]
            'shared'
            >>> vq.SWRD.hardened("cifar10", light=True).settings()["noise"]
            'patch'
        """
        presets = cls.LIGHT if light else cls.HARDENED
        checks.one_of("hardened", data, presets)
        make: Callable[..., SWRD] = cls
        return make(**presets[data], seed=seed)

    def _check_together(self) -> None:
        super()._check_together()
        if self.noise != "patch" and self.weights_from == "clean" and self.beta > 0:
            raise InvalidInputError(
                f"weights_from='clean' should be 'noisy' where noise={self.noise!r}: windows of a noisy "
                "image have no clean form"
            )

    def certificate_terms(self) -> CertificateTerms:
        """As of every quantizer; clean weights see the image past its noise."""
        return {**super().certificate_terms(), "weights_from": self.weights_from, "beta": self.beta}
