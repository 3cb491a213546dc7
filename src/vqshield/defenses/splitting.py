"""Smoothing by splitting noise (Levine and Feizi 2021): the one defense whose L1 certificate is exact."""

import math
from functools import lru_cache
from typing import Unpack

import torch
from torch import Tensor

from vqshield.core import checks
from vqshield.core.errors import InvalidInputError
from vqshield.defenses.base import CertificateTerms, Defense, DefenseOptions
from vqshield.quantization import operators
from vqshield.quantization.noise import Draw, Stage

WHITE = 255
"""The largest level of an 8-bit value; the smallest is 0."""
_MOST_SCALE = 32.0
_HAIR = 1e-9  # 510·0.1 may be rounded to just below 51


class Splitting(Defense):
    """Cuts the axis of every value into cells of width 2·scale, and shows the centre of the value's cell.

    A value is rounded to the nearest level v/255 first, and the cuts lie halfway between levels, so that all
    that follows is integer arithmetic. Every value has an offset of its own, random but fixed (`pattern`); a
    draw moves all cuts by one of `levels` shifts. Cells are cut off at 0 and 1 before their centre is taken.

    A value that changes by one level changes cell in exactly one of the shifts. So an image at an L1 distance
    of r differs from this one in at most 255·r of the `levels` draws, whatever the classifier makes of them,
    and all draws can be made: `vq.certify_l1` gives an exact certificate of their vote.

    Args:
        scale: λ of the paper, half the width of a cell in units of [0, 1]; from 1/2 on, an axis has at most
            one cut. A cell is ⌊510·scale⌋ levels wide.
        pattern: the seed of the fixed offsets. A classifier that is trained behind the defense may know them,
            so training, certificate and use should have the same.
        **options: seed, streams, range, surrogate, as of every `Defense`; the first two decide the shift of a
            draw.

    Raises:
        InvalidInputError: a scale below 1/510, where a cell would not hold a level.

    Example:
        >>> split = vq.Splitting(scale=0.1, seed=0)
        >>> split.levels, round(float((split(images) - images).abs().max()), 2) <= 0.1
        (51, True)
    """

    NAME = "splitting"

    def __init__(self, *, scale: float, pattern: int = 0, **options: Unpack[DefenseOptions]) -> None:
        super().__init__(**options)
        self.scale = checks.real("scale", scale, most=_MOST_SCALE)
        self.pattern = checks.whole("pattern", pattern, least=0, below=2**63)
        if self.levels < 1:
            raise InvalidInputError(f"scale={scale} should be at least 1/510: a cell holds a level or more")

    @property
    def levels(self) -> int:
        """How many levels wide a cell is, which is also how many shifts there are."""
        return math.floor(2 * WHITE * self.scale + _HAIR)

    def forward(self, images: Tensor, *, streams: Tensor | None = None) -> Tensor:
        streams = self.streams(images, streams)
        images = operators.inside(images.detach())
        words = Draw(self.seed, streams).words(Stage.SHIFT, 0, 1)[:, 0]
        return self.shifted(images, words * self.levels >> 32)

    def shifted(self, images: Tensor, shifts: Tensor) -> Tensor:
        """The draw of each image whose cuts are moved by a given number of levels, (B,), from 0 to levels−1.

        Images of the same shape, dtype and device; that they lie in [0, 1] is left to the caller.
        """
        width = self.levels
        values = images.detach().mul(WHITE).round_().to(torch.int32).contiguous()
        offsets = _offsets(self.pattern, width, tuple(images.shape[1:]), images.device)
        cuts = offsets.add(shifts.to(torch.int32).view(-1, 1, 1, 1)).remainder_(width)
        # A cut above the last level cuts nothing, wherever it lies.
        place = cuts.clamp_(max=WHITE).mul_(WHITE + 1).add_(values)
        shown = _centres(width, images.dtype, images.device).index_select(0, place.view(-1))
        return shown.view(images.shape)

    def certificate_terms(self) -> CertificateTerms:
        raise InvalidInputError(
            "no L2 certificate is known for Splitting: it adds no Gaussian noise. Its own is exact, in L1: "
            "vqshield certify --norm l1, or vq.certify_l1"
        )


@lru_cache(maxsize=32)
def _offsets(pattern: int, width: int, shape: tuple[int, ...], device: torch.device) -> Tensor:
    """The fixed offset of every value, from 0 to width−1: int32 of an image's shape."""
    words = Draw(pattern, torch.zeros(1, dtype=torch.int64)).words(Stage.PATTERN, 0, math.prod(shape))
    return (words[0] * width >> 32).to(torch.int32).view(shape).to(device)


@lru_cache(maxsize=32)
def _centres(width: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """What a level becomes, by the place of its cut: entry 256·cut + level.

    The cuts of an axis lie at cut + ½ and every `width` levels from there. Worked out once, in integers and
    on the CPU, so that every device shows the same bits.
    """
    cut = torch.arange(min(width, WHITE + 1))[:, None]
    level = torch.arange(WHITE + 1)[None]
    cells = torch.div(level - cut - 1, width, rounding_mode="floor") + 1  # from the cut to the level
    upper = 2 * (cut + cells * width) + 1  # the cell's ends in half levels
    lower = upper - 2 * width
    ends = upper.clamp(max=2 * WHITE) + lower.clamp(min=0)
    return ends.double().div(4 * WHITE).to(dtype).flatten().to(device)
