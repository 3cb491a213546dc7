"""Fewer bits a value: the simplest quantizer there is, as a control."""

from torch import Tensor

from vqshield.core import checks
from vqshield.core.settings import Setting
from vqshield.defenses.base import Defense, Gradient
from vqshield.quantization import operators


class BitDepth(Defense):
    """Every value rounded to the nearest of 2^bits evenly spaced ones: a control, the same for all images.

    From *Feature Squeezing: Detecting Adversarial Examples in Deep Neural Networks* (Xu, Evans & Qi 2018), as
    a defense against attacks that do not know it. It draws nothing. Its surrogate is the identity ("ste"):
    rounding is the identity up to half a step.

    Args:
        bits: of a value, 1 to 8.
        seed, streams, range, surrogate: as of every Defense; nothing depends on the first two.

    Example:
        >>> vq.defenses.BitDepth(bits=1)(images).unique()
        tensor([0., 1.])
    """

    NAME = "bitdepth"

    def __init__(
        self,
        *,
        bits: int = 4,
        seed: int | None = None,
        streams: str = "fresh",
        range: str = "raise",
        surrogate: str | Gradient | None = None,
    ) -> None:
        super().__init__(seed=seed, streams=streams, range=range, surrogate=surrogate)
        self.bits = checks.whole("bits", bits, least=1, below=9)

    def forward(self, images: Tensor, *, streams: Tensor | None = None) -> Tensor:
        self.streams(images, streams)
        images = operators.inside(images.detach())
        levels = 2**self.bits - 1
        rounded: Tensor = (images * levels).round() / levels
        return rounded

    def settings(self) -> dict[str, Setting]:
        return {"bits": self.bits}
