"""Plain Gaussian noise on the image: the baseline of every noisy quantizer."""

import torch
from torch import Tensor

from vqshield.core import checks
from vqshield.defenses.base import CertificateTerms, Defense, Gradient, Streams
from vqshield.quantization import operators
from vqshield.quantization.noise import Draw, Stage
from vqshield.quantization.pixels import Range

_AT_ONCE = 2**24  # values whose noise is made at once on a GPU; a Gaussian value takes about 128 bytes
_CACHE_FRIENDLY = 2**17  # and on a CPU


class GaussianNoise(Defense):
    """images + sigma·N(0, I), drawn afresh for every image in every call: plain randomised smoothing.

    Nothing is clamped, as in Cohen et al. (2019): the classifier sees the Gaussian itself. Clamping would be
    post-processing, which no certificate minds, but it is not what others compare with. The noise is that of
    a quantizer with noise="shared" and the same seed, value for value, so the two differ by the quantizer
    (and its clamping) alone.

    Args:
        sigma: standard deviation of the noise, in units of [0, 1].
        seed, streams, range, surrogate: as of every Defense.

    Example:
        >>> noisy = vq.GaussianNoise(sigma=0.1, seed=0)(images)
        >>> round(float((noisy - images).std()), 2)
        0.1
    """

    NAME = "gaussian"

    def __init__(
        self,
        *,
        sigma: float,
        seed: int | None = None,
        streams: Streams = "fresh",
        range: Range = "raise",
        surrogate: str | Gradient | None = None,
    ) -> None:
        super().__init__(seed=seed, streams=streams, range=range, surrogate=surrogate)
        self.sigma = checks.real("sigma", sigma)

    def forward(self, images: Tensor, *, streams: Tensor | None = None) -> Tensor:
        streams = self.streams(images, streams)
        images = operators.inside(images.detach())
        flat = images.flatten(1)
        noisy = torch.empty_like(flat)
        most = _CACHE_FRIENDLY if images.device.type == "cpu" else _AT_ONCE
        rows = max(1, most // flat.shape[1])
        for first in range(0, len(flat), rows):
            part = slice(first, first + rows)
            values = Draw(self.seed, streams[part]).normals(Stage.CODEBOOK, 0, flat.shape[1])
            noisy[part] = values.mul_(self.sigma).add_(flat[part])
        return noisy.view(images.shape)

    def surrogate(self, images: Tensor, *, streams: Tensor) -> Tensor:
        """The identity, whose gradient is that of images + noise exactly."""
        return images

    def certificate_terms(self) -> CertificateTerms:
        """As of single pixels that share one draw on the image: sigma_eff = sigma, and nothing is copied."""
        return {
            "kind": "disjoint", "size": 1, "sigma": self.sigma, "tau": self.sigma, "noise": "image",
            "shared": True,
        }  # fmt: skip
