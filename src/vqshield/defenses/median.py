"""The median of each pixel's neighbourhood, as a control."""

from torch import Tensor

from vqshield.core import checks
from vqshield.core.errors import InvalidInputError
from vqshield.core.settings import Setting
from vqshield.defenses.base import Defense, Gradient
from vqshield.defenses.borders import mirror_border
from vqshield.quantization import operators


class MedianFilter(Defense):
    """Every value becomes the median of the size×size values around it, each channel by itself: a control.

    From *Feature Squeezing* (Xu, Evans & Qi 2018). Borders are mirrored; of an even number of values the
    lower middle one is taken. It draws nothing. Its surrogate is torch's own gradient, which goes to the
    pixel that the median was taken from, and is exact almost everywhere.

    Args:
        size: the side of the neighbourhood, in pixels.
        seed, streams, range, surrogate: as of every Defense; nothing depends on the first two.

    Example:
        >>> speck = torch.zeros(1, 1, 5, 5)
        >>> speck[0, 0, 2, 2] = 1
        >>> float(vq.defenses.MedianFilter(size=3)(speck).max())
        0.0
    """

    NAME = "median"

    def __init__(
        self,
        *,
        size: int = 3,
        seed: int | None = None,
        streams: str = "fresh",
        range: str = "raise",
        surrogate: str | Gradient | None = None,
    ) -> None:
        super().__init__(seed=seed, streams=streams, range=range, surrogate=surrogate)
        self.size = checks.whole("size", size, least=1)

    def check(self, images: Tensor) -> None:
        super().check(images)
        if self.size > min(images.shape[2:]):
            raise InvalidInputError(f"size={self.size} should be at most min(h, w)={min(images.shape[2:])}")

    def forward(self, images: Tensor, *, streams: Tensor | None = None) -> Tensor:
        self.streams(images, streams)
        images = operators.inside(images.detach())
        return self._filtered(images)

    def surrogate(self, images: Tensor, *, streams: Tensor) -> Tensor:
        """The filter itself: torch differentiates it."""
        return self._filtered(images)

    def settings(self) -> dict[str, Setting]:
        return {"size": self.size}

    def _filtered(self, images: Tensor) -> Tensor:
        before, after = (self.size - 1) // 2, self.size // 2
        windows = (
            mirror_border(images, before, after).unfold(2, self.size, 1).unfold(3, self.size, 1)
        )  # (B, q, h, w, s, s)
        return windows.flatten(4).median(-1).values
