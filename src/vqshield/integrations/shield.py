"""A defense for images of the kinds that other libraries hand around: bytes, halves, single ones, videos."""

import torch
from torch import Tensor, nn

from vqshield import surrogates
from vqshield.defenses import Defense
from vqshield.errors import InvalidInputError
from vqshield.purification import shield_for
from vqshield.surrogates import Attach, ImageSurrogate, Shielding, Surrogate

_ROUNDING = {torch.float32: 1e-5, torch.float64: 1e-5, torch.float16: 1e-2, torch.bfloat16: 2e-2}
"""How far outside of [0, 1] a value may lie to count as rounded: a resize or an attack leaves such ones."""


class Shield(nn.Module):
    """A defense by itself, with a gradient of its own: what every adapter puts into its framework.

    Args:
        defense: a quantizer by text, "swrd:size=3", or a Defense.
        surrogate: what stands in for its gradient, as of `vqshield.Defended`; "score" needs a classifier,
            and is refused here.
        seed: the seed of the draws; None for the defense's own.

    Raises:
        InvalidInputError: an unknown defense or surrogate, answered with the known ones.
    """

    def __init__(
        self,
        defense: str | Defense = "swrd",
        *,
        surrogate: str | Surrogate | Attach = "ste",
        seed: int | None = None,
    ) -> None:
        super().__init__()
        self.defense = shield_for(defense, seed)
        found = surrogates.get(surrogate)
        if not isinstance(found, ImageSurrogate):
            raise InvalidInputError(
                f"surrogate={surrogate!r} needs the classifier behind the defense; use vqshield.defend, or "
                "another surrogate, such as ste or soft"
            )
        found.check(self.defense)
        self._surrogate = found

    def forward(self, images: Tensor, *, streams: Tensor | None = None) -> Tensor:
        """Shielded images of the same shape and dtype.

        Args:
            images: (…, q, h, w), uint8 or floating point in [0, 1]; values a rounding away from that are
                clamped.
            streams: a stream number for each image, which repeat a draw; None takes fresh ones.

        Raises:
            InvalidInputError: images that cannot be taken.
        """
        pixels = as_pixels(images)
        streams = self.defense.streams(pixels, streams)
        found: Tensor = self.defense(pixels, streams=streams)
        if pixels.requires_grad and torch.is_grad_enabled():
            found = self._surrogate.attach(Shielding(pixels, found, self.defense, streams))
        if images.dtype == torch.uint8:
            found = found.clamp(0, 1).mul(255).round()
        return found.to(images.dtype).reshape(images.shape)

    def draw(self, images: Tensor) -> Tensor:
        """The stream number of each image, (B,), for a call or for several."""
        return self.defense.streams(as_pixels(images))

    def streams_for(self, shape: tuple[int, ...]) -> Tensor:
        """Fresh stream numbers for images of that shape (B, q, h, w), whatever they will show."""
        return self.defense.streams(torch.zeros(1, *shape[1:]).expand(shape))


def as_pixels(images: object) -> Tensor:
    """Images as a defense takes them: (B, q, h, w), float32 or float64, in [0, 1]."""
    if not isinstance(images, Tensor):
        raise InvalidInputError(f"images should be a torch tensor, not {type(images).__name__}")
    if images.dim() < 3:
        raise InvalidInputError(f"images of shape {tuple(images.shape)} should be (..., q, h, w)")
    pixels = images.as_subclass(Tensor)
    if images.dtype == torch.uint8:
        pixels = pixels.float().div_(255)
    elif images.dtype in _ROUNDING:
        pixels = _clamped(pixels, _ROUNDING[images.dtype])
    else:
        raise InvalidInputError(f"images of dtype {images.dtype} should be torch.uint8 or floating point")
    return pixels.reshape(-1, *images.shape[-3:])


def _clamped(images: Tensor, rounding: float) -> Tensor:
    """Values just outside of [0, 1] moved to its ends, with the gradient of the identity."""
    pixels = images if images.dtype == torch.float64 else images.float()
    inside = pixels.detach().clamp(0, 1)
    if pixels.numel() and not bool((pixels.detach() - inside).abs().max() <= rounding):  # nan is never <=
        wrong = pixels.detach()[~((pixels.detach() - inside).abs() <= rounding)][0]
        raise InvalidInputError(f"images contain {float(wrong):g}; every value should lie in [0, 1]")
    return pixels + (inside - pixels.detach()) if pixels.requires_grad else inside
