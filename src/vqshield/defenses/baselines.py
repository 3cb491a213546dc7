"""Defenses of others, as baselines for the quantizers; noise alone is in `vqshield.defenses.gaussian`."""

import io
from abc import abstractmethod
from typing import Unpack

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vqshield.core import checks
from vqshield.core.errors import InvalidInputError
from vqshield.defenses.base import Defense, DefenseOptions
from vqshield.defenses.prd import RandDisc
from vqshield.images.files import pillow
from vqshield.quantization import operators
from vqshield.quantization.noise import Draw, Stage

# Luma and the two colour differences of a JPEG file, from red, green and blue (ITU-R BT.601).
_TO_YCBCR = ((0.299, 0.587, 0.114), (-0.168736, -0.331264, 0.5), (0.5, -0.418688, -0.081312))
_TV_STEP = 0.25  # what is used in practice; convergence is proved up to 1/8
_TINY = 1e-12  # under a root, which has no gradient at zero
_EDGE = 2.0  # times the image's mean slope
_REACH = 3  # pixels from an edge to full blur


class _Baseline(Defense):
    """A baseline is a function of images in [0, 1] and stream numbers."""

    def forward(self, images: Tensor, *, streams: Tensor | None = None) -> Tensor:
        streams = self.streams(images, streams)
        return self._changed(operators.inside(images.detach()), streams).clamp(0, 1)

    def surrogate(self, images: Tensor, *, streams: Tensor) -> Tensor | None:
        """The same draw of it: torch differentiates it."""
        return self._changed(images, streams)

    @abstractmethod
    def _changed(self, images: Tensor, streams: Tensor) -> Tensor:
        """The changed images, which may reach beyond [0, 1]."""


class BitDepth(_Baseline):
    """Every value rounded to the nearest of 2^bits evenly spaced ones: a baseline, the same for all images.

    From *Feature Squeezing: Detecting Adversarial Examples in Deep Neural Networks* (Xu, Evans & Qi 2018), as
    a defense against attacks that do not know it. It draws nothing. Its surrogate is the identity ("ste"):
    rounding is the identity up to half a step.

    Args:
        bits: of a value, 1 to 8.
        **options: seed, streams, range, surrogate, as of every `Defense`; the first two change nothing.

    Example:
        >>> vq.defenses.BitDepth(bits=1)(images).unique()
        tensor([0., 1.])
    """

    NAME = "bitdepth"

    def __init__(self, *, bits: int = 4, **options: Unpack[DefenseOptions]) -> None:
        super().__init__(**options)
        self.bits = checks.whole("bits", bits, least=1, below=9)

    def surrogate(self, images: Tensor, *, streams: Tensor) -> None:
        """None: the identity replaces it."""

    def _changed(self, images: Tensor, streams: Tensor) -> Tensor:
        levels = 2**self.bits - 1
        rounded: Tensor = (images * levels).round() / levels
        return rounded


class MedianFilter(_Baseline):
    """Every value becomes the median of the size×size values around it, each channel by itself: a baseline.

    From *Feature Squeezing* (Xu, Evans & Qi 2018). Borders are mirrored; of an even number of values the
    lower middle one is taken. It draws nothing. Its surrogate is torch's own gradient, which goes to the
    pixel that the median was taken from, and is exact almost everywhere.

    Args:
        size: the side of the neighbourhood, in pixels.
        **options: seed, streams, range, surrogate, as of every `Defense`; the first two change nothing.

    Example:
        >>> speck = torch.zeros(1, 1, 5, 5)
        >>> speck[0, 0, 2, 2] = 1
        >>> float(vq.defenses.MedianFilter(size=3)(speck).max())
        0.0
    """

    NAME = "median"

    def __init__(self, *, size: int = 3, **options: Unpack[DefenseOptions]) -> None:
        super().__init__(**options)
        self.size = checks.whole("size", size, least=1)

    def check(self, images: Tensor) -> None:
        super().check(images)
        checks.fits("size", self.size, images)

    def _changed(self, images: Tensor, streams: Tensor) -> Tensor:
        padded = mirror_border(images, (self.size - 1) // 2, self.size // 2)
        windows = padded.unfold(2, self.size, 1).unfold(3, self.size, 1)  # (B, q, h, w, s, s)
        return windows.flatten(4).median(-1).values


class JPEG(_Baseline):
    """Every image written as a JPEG file of that quality and read again, by Pillow on the CPU: a baseline.

    From *A study of the effect of JPG compression on adversarial images* (Dziugaite, Ghahramani & Roy 2016).
    Images have one channel or three; they are rounded to bytes first, as a file holds them. It draws nothing.
    Its surrogate takes the rounding of coefficients for the identity, and keeps what is smooth: three
    channels' colour is halved in resolution, as the file has it.

    Args:
        quality: 1 (worst) to 95, as Pillow counts it.
        **options: seed, streams, range, surrogate, as of every `Defense`; the first two change nothing.

    Example:
        >>> compressed = vq.defenses.JPEG(quality=10)(images)
        >>> 0.01 < float((compressed - images).abs().mean()) < 0.1
        True
    """

    NAME = "jpeg"

    def __init__(self, *, quality: int = 75, **options: Unpack[DefenseOptions]) -> None:
        super().__init__(**options)
        self.quality = checks.whole("quality", quality, least=1, below=96)

    def check(self, images: Tensor) -> None:
        super().check(images)
        if images.shape[1] not in (1, 3):
            raise InvalidInputError(
                f"images of shape {tuple(images.shape)} should have 1 or 3 channels, as a JPEG file has"
            )

    def _changed(self, images: Tensor, streams: Tensor) -> Tensor:
        result = torch.empty_like(images)
        for image, compressed in zip(images, result, strict=True):
            pixels = (image * 255).round().to(torch.uint8).permute(1, 2, 0).squeeze(2).cpu().numpy()
            file = io.BytesIO()
            pillow().fromarray(pixels).save(file, "JPEG", quality=self.quality)
            levels = torch.from_numpy(np.array(pillow().open(file))).view(*image.shape[1:], -1)
            compressed.copy_(levels.permute(2, 0, 1).to(images) / 255)
        return result

    def surrogate(self, images: Tensor, *, streams: Tensor) -> Tensor:
        """Colour at half the resolution; the identity for images of one channel."""
        if images.shape[1] == 1:
            return images
        matrix = torch.tensor(_TO_YCBCR, dtype=images.dtype, device=images.device)
        converted = torch.einsum("ij,bjhw->bihw", matrix, images)
        height, width = images.shape[2:]
        rows, columns = slice(1, 1 + height + height % 2), slice(1, 1 + width + width % 2)
        even = repeat_border(converted[:, 1:], 1)[:, :, rows, columns]
        coarse = F.avg_pool2d(even, 2).repeat_interleave(2, 2).repeat_interleave(2, 3)[..., :height, :width]
        halved = torch.cat([converted[:, :1], coarse], 1)
        return torch.einsum("ij,bjhw->bihw", torch.linalg.inv(matrix), halved)


class ResizePad(_Baseline):
    """Every image shrunk to a random size and put at a random place on black: a baseline that is random.

    From *Mitigating Adversarial Effects Through Randomization* (Xie et al. 2018). Theirs enlarges images of
    299 pixels to 331; here images keep their shape, so they are shrunk instead, by bilinear interpolation.
    Its surrogate is the same draw, which is linear in the image: the gradient is exact.

    Args:
        smallest: the smallest side, as a share of the image's; sizes from there to the whole are equally
            likely.
        **options: seed, streams, range, surrogate, as of every `Defense`.

    Example:
        >>> placed = vq.defenses.ResizePad(smallest=0.5, seed=0)(torch.ones(1, 1, 8, 8))
        >>> 16 <= int((placed > 0).sum()) <= 64
        True
    """

    NAME = "resizepad"

    def __init__(self, *, smallest: float = 0.75, **options: Unpack[DefenseOptions]) -> None:
        super().__init__(**options)
        self.smallest = checks.real("smallest", smallest, least=0.1, most=1.0)

    def _changed(self, images: Tensor, streams: Tensor) -> Tensor:
        size, row, column = Draw(self.seed, streams).uniforms(Stage.CODEBOOK, 0, 3).T
        rows = self._weights(images.shape[2], size, row).to(images)
        columns = self._weights(images.shape[3], size, column).to(images)
        return torch.einsum("bij,bqjk,blk->bqil", rows, images, columns)

    def _weights(self, side: int, size: Tensor, place: Tensor) -> Tensor:
        """The weight of each old row in each new one, (B, side, side): products of a fixed order, on every
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


class TotalVariation(_Baseline):
    """The image u that makes ‖u − x‖²/2 + weight·TV(u) small: flat areas with sharp borders; a baseline.

    From *Countering Adversarial Images using Input Transformations* (Guo et al. 2018), without their random
    choice of pixels, each channel by itself. The problem is solved by Chambolle's projection (*An Algorithm
    for Total Variation Minimization and Applications*, 2004). It draws nothing. Its surrogate is torch's own
    gradient, through all rounds.

    Args:
        weight: of the variation; 0 changes nothing.
        rounds: of the projection.
        **options: seed, streams, range, surrogate, as of every `Defense`; the first two change nothing.

    Example:
        >>> smooth = vq.defenses.TotalVariation(weight=0.1)(images)
        >>> float(smooth.diff(dim=3).abs().mean()) < float(images.diff(dim=3).abs().mean())
        True
    """

    NAME = "tv"

    def __init__(self, *, weight: float = 0.05, rounds: int = 20, **options: Unpack[DefenseOptions]) -> None:
        super().__init__(**options)
        self.weight = checks.real("weight", weight, most=10.0)
        self.rounds = checks.whole("rounds", rounds, least=1)

    def _changed(self, images: Tensor, streams: Tensor) -> Tensor:
        if self.weight == 0:
            return images
        down, right = torch.zeros_like(images), torch.zeros_like(images)  # the dual field
        for _ in range(self.rounds):
            steps = _divergence(down, right) - images / self.weight
            # Differences to the next pixel below and to the right, 0 at the border.
            vertical, horizontal = F.pad(steps.diff(dim=2), (0, 0, 0, 1)), F.pad(steps.diff(dim=3), (0, 1))
            size = 1 + _TV_STEP * (vertical.square() + horizontal.square() + _TINY).sqrt()
            down, right = (down + _TV_STEP * vertical) / size, (right + _TV_STEP * horizontal) / size
        return images - self.weight * _divergence(down, right)


class EssentialFeatures(_Baseline):
    """Blurred away from its edges, and then reduced to k colours of the image's own: a baseline.

    After *Content-Adaptive Pixel Discretization to Improve Model Robustness* (Feng, Feng & Prakash, arXiv
    2012.01699; first *Essential Features*): an adaptive blur that spares edges, then k-means over the pixels
    of that image. Where the paper has Canny's edges, an edge here is a pixel whose slope exceeds twice the
    image's mean; the blur grows over three pixels from there. Only the start of k-means is drawn. Its
    surrogate is the blur, with the edges as they are and the colours taken for the identity.

    Args:
        codes: k, the number of colours.
        blur: standard deviation of the Gaussian blur, in pixels.
        **options: seed, streams, range, surrogate, as of every `Defense`.

    Example:
        >>> flat = vq.defenses.EssentialFeatures(codes=4, seed=0)(images[:1])
        >>> len(flat[0].flatten(1).unique(dim=1).T)  # colours
        4
    """

    NAME = "essential"

    def __init__(self, *, codes: int = 12, blur: float = 1.0, **options: Unpack[DefenseOptions]) -> None:
        super().__init__(**options)
        self.blur = checks.real("blur", blur, least=0.1, most=10.0)
        self._colours = RandDisc(codes=codes, sigma=0.0, tau=0.0, seed=self.seed)

    @property
    def codes(self) -> int:
        """k, the number of colours."""
        return self._colours.codes

    def check(self, images: Tensor) -> None:
        super().check(images)
        self._colours.check(images)

    def _changed(self, images: Tensor, streams: Tensor) -> Tensor:
        blurred = self._blurred(images).clamp(0, 1)
        if self._colours.seed != self.seed:  # a copy with another seed
            self._colours.seed = self.seed
        return self._colours(blurred, streams=streams)

    def surrogate(self, images: Tensor, *, streams: Tensor) -> Tensor:
        """The blur."""
        return self._blurred(images)

    def _blurred(self, images: Tensor) -> Tensor:
        sharp, channels, reach = _near_edges(images.detach()), images.shape[1], max(1, round(3 * self.blur))
        kept = sharp * images
        offsets = torch.arange(-reach, reach + 1, dtype=images.dtype, device=images.device)
        kernel = (-offsets.square() / (2 * self.blur**2)).exp()
        kernel = (kernel / kernel.sum()).expand(channels, 1, -1)
        rows = F.conv2d(repeat_border(images, reach), kernel[:, :, :, None], groups=channels)
        return kept + (1 - sharp) * F.conv2d(rows, kernel[:, :, None, :], groups=channels)


def repeat_border(images: Tensor, reach: int) -> Tensor:
    """The outermost pixels repeated `reach` times on every side.

    The gradient of slices is a sum in a fixed order on a GPU too, where that of torch's own padding is not.
    """
    for axis in (2, 3):
        first, last = images.narrow(axis, 0, 1), images.narrow(axis, images.shape[axis] - 1, 1)
        images = torch.cat([*[first] * reach, images, *[last] * reach], dim=axis)
    return images


def mirror_border(images: Tensor, before: int, after: int) -> Tensor:
    """Pixels mirrored at the border: `before` of them above and left, `after` below and right."""
    for axis in (2, 3):
        start = images.narrow(axis, 1, before).flip(axis)
        end = images.narrow(axis, images.shape[axis] - 1 - after, after).flip(axis)
        images = torch.cat([start, images, end], dim=axis)
    return images


def _divergence(down: Tensor, right: Tensor) -> Tensor:
    """Minus the adjoint of the differences; the last row and column of the field are 0."""
    vertical = F.pad(down[:, :, :-1], (0, 0, 0, 1)) - F.pad(down[:, :, :-1], (0, 0, 1, 0))
    horizontal = F.pad(right[:, :, :, :-1], (0, 1)) - F.pad(right[:, :, :, :-1], (1, 0))
    return vertical + horizontal


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
