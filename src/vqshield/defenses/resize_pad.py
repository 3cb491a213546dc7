"""A random size and a random place: random resizing and padding, as a control."""

import torch
from torch import Tensor

from vqshield.core import checks
from vqshield.core.settings import Setting
from vqshield.defenses.base import Defense, Gradient
from vqshield.quantization import operators
from vqshield.quantization.noise import Draw, Stage


class ResizePad(Defense):
    """Every image shrunk to a random size and put at a random place on black: a control that is random.

    From *Mitigating Adversarial Effects Through Randomization* (Xie et al. 2018). Theirs enlarges images of
    299 pixels to 331; here images keep their shape, so they are shrunk instead, by bilinear interpolation.
    Its surrogate is the same draw, which is linear in the image: the gradient is exact.

    Args:
        smallest: the smallest side, as a share of the image's; sizes from there to the whole are equally
            likely.
        seed, streams, range, surrogate: as of every Defense.

    Example:
        >>> found = vq.defenses.ResizePad(smallest=0.5, seed=0)(torch.ones(1, 1, 8, 8))
        >>> 16 <= int((found > 0).sum()) <= 64
        True
    """

    NAME = "resizepad"

    def __init__(
        self,
        *,
        smallest: float = 0.75,
        seed: int | None = None,
        streams: str = "fresh",
        range: str = "raise",
        surrogate: str | Gradient | None = None,
    ) -> None:
        super().__init__(seed=seed, streams=streams, range=range, surrogate=surrogate)
        self.smallest = checks.real("smallest", smallest, least=0.1, most=1.0)

    def forward(self, images: Tensor, *, streams: Tensor | None = None) -> Tensor:
        streams = self.streams(images, streams)
        images = operators.inside(images.detach())
        return self._placed(images, streams).clamp(0, 1)

    def surrogate(self, images: Tensor, *, streams: Tensor) -> Tensor:
        """The same draw of it: torch differentiates it."""
        return self._placed(images, streams)

    def settings(self) -> dict[str, Setting]:
        return {"smallest": self.smallest}

    def _placed(self, images: Tensor, streams: Tensor) -> Tensor:
        drawn = Draw(self.seed, streams).uniforms(Stage.CODEBOOK, 0, 3)  # (B, 3): size, row, column
        rows, columns = (
            self._weights(side, drawn[:, 0], drawn[:, place]).to(images)
            for side, place in ((images.shape[2], 1), (images.shape[3], 2))
        )
        return torch.einsum("bij,bqjk,blk->bqil", rows, images, columns)

    def _weights(self, side: int, size: Tensor, place: Tensor) -> Tensor:
        """How much each new row sees of each old one, (B, side, side): products of a fixed order, on every
        device, where a scattered sum would not be.
        """
        least = max(1, round(self.smallest * side))
        new = (least + (size * (side - least + 1)).floor())[:, None]  # (B, 1), whole numbers
        first = (place[:, None] * (side - new + 1)).floor()
        index = torch.arange(side, device=size.device, dtype=size.dtype)
        local = index[None] - first  # (B, side)
        source = ((local + 0.5) * side / new - 0.5).clamp(0, side - 1)
        inside = (local >= 0) & (local < new)
        return (1 - (source[:, :, None] - index).abs()).clamp(min=0) * inside[:, :, None]
