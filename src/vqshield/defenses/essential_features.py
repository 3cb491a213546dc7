"""Essential Features: blur where no edge is, then a few colours of the image's own; as a control."""

import torch
import torch.nn.functional as F
from torch import Tensor

from vqshield.core import checks
from vqshield.core.settings import Setting
from vqshield.defenses.base import Defense, Gradient
from vqshield.defenses.borders import repeat_border
from vqshield.defenses.randdisc import RandDisc
from vqshield.quantization import operators

_EDGE = 2.0  # times the image's mean slope
_REACH = 3  # pixels from an edge to full blur


class EssentialFeatures(Defense):
    """Blurred away from its edges, and then reduced to k colours of the image's own: a control.

    After *Content-Adaptive Pixel Discretization to Improve Model Robustness* (Feng, Feng & Prakash, arXiv
    2012.01699; first *Essential Features*), which reports gains against adaptive attacks: an adaptive blur
    that spares edges, then k-means over the pixels of that image. Where the paper has Canny's edges, an edge
    here is a pixel whose slope exceeds twice the image's mean; the blur grows over three pixels from there.
    The colours are found by our own clustering, without noise; the start of k-means alone is drawn. Its
    surrogate is the blur, with the edges as they are and the colours taken for the identity.

    Args:
        codes: k, the number of colours.
        blur: standard deviation of the Gaussian blur, in pixels.
        seed, streams, range, surrogate: as of every Defense.

    Example:
        >>> found = vq.defenses.EssentialFeatures(codes=4, seed=0)(images[:1])
        >>> len(found[0].flatten(1).unique(dim=1).T)  # colours
        4
    """

    NAME = "essential"

    def __init__(
        self,
        *,
        codes: int = 12,
        blur: float = 1.0,
        seed: int | None = None,
        streams: str = "fresh",
        range: str = "raise",
        surrogate: str | Gradient | None = None,
    ) -> None:
        super().__init__(seed=seed, streams=streams, range=range, surrogate=surrogate)
        self.blur = checks.real("blur", blur, least=0.1, most=10.0)
        self._colours = RandDisc(codes=codes, sigma=0.0, tau=0.0, seed=self.seed)

    @property
    def codes(self) -> int:
        """k, the number of colours."""
        return self._colours.codes

    def check(self, images: Tensor) -> None:
        super().check(images)
        self._colours.check(images)

    def forward(self, images: Tensor, *, streams: Tensor | None = None) -> Tensor:
        streams = self.streams(images, streams)
        images = operators.inside(images.detach())
        if self._colours.seed != self.seed:  # a copy with another seed
            self._colours.seed = self.seed
        found: Tensor = self._colours(self._blurred(images).clamp(0, 1), streams=streams)
        return found

    def surrogate(self, images: Tensor, *, streams: Tensor) -> Tensor:
        """The blur."""
        return self._blurred(images)

    def settings(self) -> dict[str, Setting]:
        return {"codes": self.codes, "blur": self.blur}

    def _blurred(self, images: Tensor) -> Tensor:
        sharp = _near_edges(images.detach())
        return sharp * images + (1 - sharp) * _gaussian_blur(images, self.blur)


def _near_edges(images: Tensor) -> Tensor:
    """1 on an edge, 0 from _REACH pixels away, (B, 1, h, w)."""
    grey = repeat_border(images.mean(1, keepdim=True), 1)
    across = (grey[:, :, 1:-1, 2:] - grey[:, :, 1:-1, :-2]) / 2
    along = (grey[:, :, 2:, 1:-1] - grey[:, :, :-2, 1:-1]) / 2
    slope = (across.square() + along.square()).sqrt()
    near = (slope > _EDGE * slope.mean((2, 3), keepdim=True)).to(images)
    total = near
    for _ in range(_REACH - 1):
        near = F.max_pool2d(near, 3, stride=1, padding=1)
        total = total + near
    return total / _REACH


def _gaussian_blur(images: Tensor, deviation: float) -> Tensor:
    channels = images.shape[1]
    reach = max(1, round(3 * deviation))
    offsets = torch.arange(-reach, reach + 1, dtype=images.dtype, device=images.device)
    kernel = (-offsets.square() / (2 * deviation**2)).exp()
    kernel = (kernel / kernel.sum()).expand(channels, 1, -1)
    rows = F.conv2d(repeat_border(images, reach), kernel[:, :, :, None], groups=channels)
    blurred: Tensor = F.conv2d(rows, kernel[:, :, None, :], groups=channels)
    return blurred
