"""JPEG compression, as a control."""

import io
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from vqshield.core import checks
from vqshield.core.errors import InvalidInputError
from vqshield.core.settings import Setting
from vqshield.defenses.base import Defense, Gradient
from vqshield.defenses.borders import repeat_border
from vqshield.images.files import pillow
from vqshield.quantization import operators

_Bytes = npt.NDArray[np.uint8]
# Luma and the two colour differences of a JPEG file, from red, green and blue (ITU-R BT.601).
_TO_YCBCR = ((0.299, 0.587, 0.114), (-0.168736, -0.331264, 0.5), (0.5, -0.418688, -0.081312))


class JPEG(Defense):
    """Every image written as a JPEG file of that quality and read again, by Pillow on the CPU: a control.

    From *A study of the effect of JPG compression on adversarial images* (Dziugaite, Ghahramani & Roy 2016).
    Images have one channel or three; they are rounded to bytes first, as a file holds them. It draws nothing.
    Its surrogate takes the rounding of coefficients for the identity, and keeps what is smooth: three
    channels' colour is halved in resolution, as the file has it.

    Args:
        quality: 1 (worst) to 95, as Pillow counts it.
        seed, streams, range, surrogate: as of every Defense; nothing depends on the first two.

    Example:
        >>> found = vq.defenses.JPEG(quality=10)(images)
        >>> 0.01 < float((found - images).abs().mean()) < 0.1
        True
    """

    NAME = "jpeg"

    def __init__(
        self,
        *,
        quality: int = 75,
        seed: int | None = None,
        streams: str = "fresh",
        range: str = "raise",
        surrogate: str | Gradient | None = None,
    ) -> None:
        super().__init__(seed=seed, streams=streams, range=range, surrogate=surrogate)
        self.quality = checks.whole("quality", quality, least=1, below=96)

    def check(self, images: Tensor) -> None:
        super().check(images)
        if images.shape[1] not in (1, 3):
            raise InvalidInputError(
                f"images of shape {tuple(images.shape)} should have 1 or 3 channels, as a JPEG file has"
            )

    def forward(self, images: Tensor, *, streams: Tensor | None = None) -> Tensor:
        self.streams(images, streams)
        images = operators.inside(images.detach())
        codec = pillow()
        pixels = (images * 255).round().to(torch.uint8).permute(0, 2, 3, 1).cpu().numpy()
        files = [self._compressed(codec, each) for each in pixels]
        if not files:
            return images.clone()
        found = torch.from_numpy(np.stack(files)).permute(0, 3, 1, 2)
        return found.to(images.device).to(images.dtype) / 255

    def surrogate(self, images: Tensor, *, streams: Tensor) -> Tensor:
        """Colour at half the resolution; the identity for images of one channel."""
        if images.shape[1] == 1:
            return images
        matrix = torch.tensor(_TO_YCBCR, dtype=images.dtype, device=images.device)
        converted = torch.einsum("ij,bjhw->bihw", matrix, images)
        height, width = images.shape[2:]
        even = repeat_border(converted[:, 1:], 1)[
            :, :, 1 : 1 + height + height % 2, 1 : 1 + width + width % 2
        ]
        coarse = F.avg_pool2d(even, 2).repeat_interleave(2, 2).repeat_interleave(2, 3)[..., :height, :width]
        return torch.einsum(
            "ij,bjhw->bihw", torch.linalg.inv(matrix), torch.cat([converted[:, :1], coarse], 1)
        )

    def settings(self) -> dict[str, Setting]:
        return {"quality": self.quality}

    def _compressed(self, codec: Any, pixels: _Bytes) -> _Bytes:
        file = io.BytesIO()
        shown = pixels[:, :, 0] if pixels.shape[2] == 1 else pixels
        codec.fromarray(shown).save(file, "JPEG", quality=self.quality)
        return np.asarray(codec.open(file), dtype=np.uint8).reshape(pixels.shape)
