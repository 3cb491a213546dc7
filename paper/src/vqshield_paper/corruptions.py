"""Fifteen common corruptions at five severities, in the style of CIFAR-10-C.

Kinds and strengths follow Hendrycks and Dietterich (2019), whose images are not these: everything here is
computed afresh, frost and fog from random fields rather than photographs. So numbers measured with it compare
classifiers with each other, and with nothing published.

What happens to an image depends on the image, its number, the kind, the severity and the seed alone.
"""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from vqshield.core.checks import one_of, whole
from vqshield.core.errors import InvalidInputError
from vqshield.core.seeds import derived_seed

SEVERITIES = (1, 2, 3, 4, 5)


class Chance:
    """The randomness of a batch, a generator for each image."""

    def __init__(self, seeds: Sequence[int]) -> None:
        self._generators = [torch.Generator().manual_seed(seed) for seed in seeds]

    def normals(self, *shape: int) -> Tensor:
        """Standard normal values (n, *shape)."""
        return torch.stack([torch.randn(shape, generator=each) for each in self._generators])

    def uniforms(self, *shape: int) -> Tensor:
        """Values uniform in [0, 1), (n, *shape)."""
        return torch.stack([torch.rand(shape, generator=each) for each in self._generators])

    def counts(self, expected: Tensor) -> Tensor:
        """Poisson counts with these expectations (n, …)."""
        pairs = zip(expected, self._generators, strict=True)
        return torch.stack([torch.poisson(rate, generator=each) for rate, each in pairs])


Corruption = Callable[[Tensor, int, Chance], Tensor]
"""Float images (n, c, h, w) in [0, 1], a severity from 0 to 4, and chance → images, not clamped yet."""


def list_corruptions() -> tuple[str, ...]:
    """The names that ``corrupted`` knows."""
    return tuple(_CORRUPTIONS)


def corrupted(images: Tensor, kind: str, severity: int, *, seed: int = 0, first: int = 0) -> Tensor:
    """Byte images (n, 1 or 3, h, w), corrupted, as bytes.

    Args:
        images: uint8.
        kind: one of ``list_corruptions()``.
        severity: from 1 to 5.
        seed: of all randomness.
        first: the number of the first image in its set: a part is corrupted as it is within the whole.

    Raises:
        InvalidInputError: an unknown kind or severity, or images of another kind.

    Example:
        >>> from vqshield.data import sample
        >>> from vqshield_paper.corruptions import corrupted
        >>> corrupted(sample(2).images, "fog", 3).shape
        torch.Size([2, 3, 32, 32])
    """
    one_of("kind", kind, _CORRUPTIONS)
    whole("severity", severity, least=1, below=6)
    if images.dtype != torch.uint8 or images.ndim != 4 or images.shape[1] not in (1, 3):
        raise InvalidInputError(
            f"images are {images.dtype} of shape {tuple(images.shape)}; "
            "they should be torch.uint8 of shape (n, 1 or 3, height, width)"
        )
    numbers = range(first, first + len(images))
    chance = Chance([derived_seed(seed, "corruption", kind, severity, number) for number in numbers])
    changed = _CORRUPTIONS[kind](images.cpu().float() / 255, severity - 1, chance)
    return (changed.clamp(0, 1) * 255).round().to(torch.uint8).to(images.device)


def _gaussian_noise(images: Tensor, level: int, chance: Chance) -> Tensor:
    return images + (0.04, 0.06, 0.08, 0.09, 0.10)[level] * chance.normals(*images.shape[1:])


def _shot_noise(images: Tensor, level: int, chance: Chance) -> Tensor:
    photons = (500, 250, 100, 75, 50)[level]
    return chance.counts(images * photons) / photons


def _impulse_noise(images: Tensor, level: int, chance: Chance) -> Tensor:
    share = (0.01, 0.02, 0.03, 0.05, 0.07)[level]
    chosen = chance.uniforms(*images.shape[1:])
    return images.masked_fill(chosen < share / 2, 0.0).masked_fill(chosen > 1 - share / 2, 1.0)


def _defocus_blur(images: Tensor, level: int, chance: Chance) -> Tensor:
    radius = (0.7, 0.9, 1.1, 1.5, 2.0)[level]
    reach = math.ceil(radius)
    away = torch.arange(-reach, reach + 1).float()
    distance = (away[:, None] ** 2 + away[None, :] ** 2).sqrt()
    disk = (radius + 0.5 - distance).clamp(0, 1)  # an edge of one pixel, softened
    return _filtered(images, (disk / disk.sum()).expand(len(images), -1, -1))


def _glass_blur(images: Tensor, level: int, chance: Chance) -> Tensor:
    """Some pixels are seen where a near one belongs, between two slight blurs."""
    share = (0.15, 0.3, 0.45, 0.65, 0.9)[level]
    moved = _smoothed(images, 0.4)
    height, width = images.shape[2:]
    shift = (chance.uniforms(2, height, width) * 3).floor().long() - 1
    shift = shift * (chance.uniforms(1, height, width) < share)
    rows = (torch.arange(height).view(1, -1, 1) + shift[:, 0]).clamp(0, height - 1)
    columns = (torch.arange(width).view(1, 1, -1) + shift[:, 1]).clamp(0, width - 1)
    source = (rows * width + columns).flatten(1)[:, None].expand(-1, images.shape[1], -1)
    return _smoothed(moved.flatten(2).gather(2, source).view_as(images), 0.4)


def _motion_blur(images: Tensor, level: int, chance: Chance) -> Tensor:
    length = (2.0, 2.5, 3.0, 3.5, 4.5)[level]
    return _streaked(images, length, (chance.uniforms(1)[:, 0] - 0.5) * math.pi / 2)


def _zoom_blur(images: Tensor, level: int, chance: Chance) -> Tensor:
    """The mean of the picture and of nearer and nearer views of its middle."""
    steps = (6, 11, 16, 21, 26)[level]
    views = [_resampled(images, _grid(images) / (1 + number / 100)) for number in range(steps)]
    return (images + torch.stack(views).sum(0)) / (steps + 1)


def _snow(images: Tensor, level: int, chance: Chance) -> Tensor:
    """Flakes in the wind, before a picture that is paler for them."""
    threshold, length, pale = (
        (2.8, 1.5, 0.95), (2.6, 2.0, 0.9), (2.4, 2.0, 0.85), (2.2, 2.5, 0.8), (2.0, 3.0, 0.75),
    )[level]  # fmt: skip
    flakes = (chance.normals(1, *images.shape[2:]) > threshold).float()
    angle = -math.pi * (0.25 + chance.uniforms(1)[:, 0] / 2)
    falling = _streaked(flakes, length, angle) * length * 0.8
    grey = images.mean(1, keepdim=True)
    paler = pale * images + (1 - pale) * torch.maximum(images, grey * 1.5 + 0.5)
    return paler + falling + falling.rot90(2, (2, 3))


def _frost(images: Tensor, level: int, chance: Chance) -> Tensor:
    """Bright ridges of a random field, as ice on a window."""
    clear, ice = ((1.0, 0.15), (0.95, 0.22), (0.9, 0.3), (0.85, 0.36), (0.75, 0.42))[level]
    field = _clouds(images, 1.8, chance)
    ridges = (1 - (2 * field - 1).abs()) ** 3
    tint = torch.tensor([0.85, 0.95, 1.0] if images.shape[1] == 3 else [0.95]).view(1, -1, 1, 1)
    return clear * images + ice * ridges * tint


def _fog(images: Tensor, level: int, chance: Chance) -> Tensor:
    thickness, roughness = ((0.2, 2.6), (0.5, 2.6), (0.75, 2.4), (1.0, 2.2), (1.5, 2.0))[level]
    brightest = images.amax((1, 2, 3), keepdim=True)
    veiled = images + thickness * _clouds(images, roughness, chance)
    return veiled * brightest / (brightest + thickness)


def _brightness(images: Tensor, level: int, chance: Chance) -> Tensor:
    """Hue and saturation stay; the brightest channel rises."""
    value = images.amax(1, keepdim=True)
    raised = (value + (0.05, 0.1, 0.15, 0.2, 0.3)[level]).clamp(max=1)
    return torch.where(value > 0, images * raised / value.clamp(min=1e-6), raised)


def _contrast(images: Tensor, level: int, chance: Chance) -> Tensor:
    mean = images.mean((2, 3), keepdim=True)
    return mean + (0.75, 0.5, 0.4, 0.3, 0.15)[level] * (images - mean)


def _elastic_transform(images: Tensor, level: int, chance: Chance) -> Tensor:
    """Pixels are pulled about by a smooth random field."""
    pull, smooth = ((1.0, 4.0), (1.2, 3.0), (1.4, 2.5), (1.6, 2.0), (1.8, 1.6))[level]
    height, width = images.shape[2:]
    field = _smoothed(chance.normals(2, height, width), smooth)
    field = pull * field / field.std((1, 2, 3), keepdim=True)
    scale = torch.tensor([2 / width, 2 / height])
    return _resampled(images, _grid(images) + field.permute(0, 2, 3, 1) * scale)


def _pixelate(images: Tensor, level: int, chance: Chance) -> Tensor:
    share = (0.95, 0.9, 0.85, 0.75, 0.65)[level]
    height, width = images.shape[2:]
    smaller = (max(1, int(height * share)), max(1, int(width * share)))
    return F.interpolate(F.interpolate(images, smaller, mode="area"), (height, width), mode="nearest")


def _jpeg_compression(images: Tensor, level: int, chance: Chance) -> Tensor:
    """What JPEG loses, without a JPEG library: colour at half the size, and rounded cosine coefficients."""
    quality = (80, 65, 58, 50, 40)[level]
    luma, chroma = (_rounding(table, quality) for table in (_LUMA, _CHROMA))
    if images.shape[1] == 1:
        return (_rounded_blocks(images * 255 - 128, luma) + 128) / 255
    height, width = images.shape[2:]
    seen = torch.einsum("oc,nchw->nohw", _TO_YCC, images * 255).round()
    even = F.pad(seen[:, 1:], (0, width % 2, 0, height % 2), mode="replicate")
    halved = _rounded_blocks(F.avg_pool2d(even, 2).round(), chroma)
    colour = F.interpolate(halved, scale_factor=2, mode="bilinear")[:, :, :height, :width]
    back = torch.cat([_rounded_blocks(seen[:, :1] - 128, luma) + 128, colour], 1)
    return torch.einsum("oc,nchw->nohw", torch.linalg.inv(_TO_YCC), back) / 255


def _rounded_blocks(planes: Tensor, steps: Tensor) -> Tensor:
    """Planes (n, c, h, w) whose 8x8 blocks have their cosine coefficients rounded to multiples of steps."""
    n, channels, height, width = planes.shape
    padded = F.pad(planes, (0, -width % 8, 0, -height % 8), mode="replicate")
    down, across = padded.shape[2] // 8, padded.shape[3] // 8
    blocks = padded.reshape(n, channels, down, 8, across, 8).transpose(3, 4)  # (n, c, down, across, 8, 8)
    coefficients = ((_COSINES @ blocks @ _COSINES.T) / steps).round() * steps
    found = (_COSINES.T @ coefficients @ _COSINES).transpose(3, 4).reshape(padded.shape)
    return found[:, :, :height, :width]


def _rounding(table: Tensor, quality: int) -> Tensor:
    """The steps of a quality from 1 to 100, as the Independent JPEG Group scales the standard's table."""
    scale = 5000 // quality if quality < 50 else 200 - 2 * quality
    return ((table * scale + 50) / 100).floor().clamp(1, 255)


def _filtered(images: Tensor, kernels: Tensor) -> Tensor:
    """Each image under its own kernel (n, k, k), mirrored at the edges."""
    n, channels, height, width = images.shape
    reach = kernels.shape[-1] // 2
    padded = F.pad(images, (min(reach, width - 1),) * 2 + (min(reach, height - 1),) * 2, mode="reflect")
    padded = F.pad(  # images smaller than the kernel
        padded, (max(0, reach - width + 1),) * 2 + (max(0, reach - height + 1),) * 2, mode="replicate"
    )
    weights = kernels.repeat_interleave(channels, 0)[:, None]  # (n·channels, 1, k, k)
    return F.conv2d(padded.reshape(1, n * channels, *padded.shape[2:]), weights, groups=n * channels).view(
        images.shape
    )


def _smoothed(images: Tensor, sigma: float) -> Tensor:
    away = torch.arange(-math.ceil(3 * sigma), math.ceil(3 * sigma) + 1).float()
    bell = (-0.5 * (away / sigma) ** 2).exp()
    kernel = bell[:, None] * bell[None, :]
    return _filtered(images, (kernel / kernel.sum()).expand(len(images), -1, -1))


def _streaked(images: Tensor, length: float, angles: Tensor) -> Tensor:
    """Smeared along a line of that length, at an angle for each image (n,)."""
    reach = math.ceil(length / 2) + 1
    away = torch.arange(-reach, reach + 1).float()
    down, across = away.view(1, -1, 1), away.view(1, 1, -1)
    cosine, sine = angles.cos().view(-1, 1, 1), angles.sin().view(-1, 1, 1)
    along, beside = across * cosine + down * sine, down * cosine - across * sine
    line = (length / 2 + 0.5 - along.abs()).clamp(0, 1) * (1 - beside.abs()).clamp(0, 1)
    return _filtered(images, line / line.sum((1, 2), keepdim=True))


def _clouds(images: Tensor, roughness: float, chance: Chance) -> Tensor:
    """A random field (n, 1, h, w) from 0 to 1 whose spectrum falls as 1/frequency^roughness."""
    height, width = images.shape[2:]
    down, across = torch.fft.fftfreq(height).view(-1, 1), torch.fft.rfftfreq(width).view(1, -1)
    frequency = (down**2 + across**2).sqrt()
    frequency[0, 0] = 1.0
    fall = frequency.pow(-(roughness / 2 + 0.5))
    fall[0, 0] = 0.0
    white = torch.fft.rfft2(chance.normals(height, width))
    field: Tensor = torch.fft.irfft2(white * fall, s=(height, width))
    low, high = field.amin((1, 2), keepdim=True), field.amax((1, 2), keepdim=True)
    return ((field - low) / (high - low).clamp(min=1e-9))[:, None]


def _grid(images: Tensor) -> Tensor:
    """Where each pixel lies, (n, h, w, 2), from -1 to 1."""
    same = torch.eye(2, 3).expand(len(images), -1, -1)
    return F.affine_grid(same, list(images.shape), align_corners=False)


def _resampled(images: Tensor, grid: Tensor) -> Tensor:
    return F.grid_sample(images, grid, mode="bilinear", padding_mode="reflection", align_corners=False)


# Tables K.1 and K.2 of the JPEG standard (ITU-T T.81), its colour transform, and the cosine basis.
_LUMA = torch.tensor([
    [16, 11, 10, 16, 24, 40, 51, 61], [12, 12, 14, 19, 26, 58, 60, 55], [14, 13, 16, 24, 40, 57, 69, 56],
    [14, 17, 22, 29, 51, 87, 80, 62], [18, 22, 37, 56, 68, 109, 103, 77], [24, 35, 55, 64, 81, 104, 113, 92],
    [49, 64, 78, 87, 103, 121, 120, 101], [72, 92, 95, 98, 112, 100, 103, 99],
], dtype=torch.float32)  # fmt: skip
_CHROMA = torch.full((8, 8), 99.0)
_CHROMA[:4, :4] = torch.tensor([[17, 18, 24, 47], [18, 21, 26, 66], [24, 26, 56, 99], [47, 66, 99, 99.0]])
_TO_YCC = torch.tensor([
    [0.299, 0.587, 0.114], [-0.168735892, -0.331264108, 0.5], [0.5, -0.418687589, -0.081312411],
])  # fmt: skip
_ROWS, _COLUMNS = torch.arange(8.0)[:, None], torch.arange(8.0)[None, :]
_COSINES = ((2 * _COLUMNS + 1) * _ROWS * (math.pi / 16)).cos() * torch.where(_ROWS == 0, 0.125, 0.25).sqrt()

_CORRUPTIONS: dict[str, Corruption] = {
    "gaussian-noise": _gaussian_noise,
    "shot-noise": _shot_noise,
    "impulse-noise": _impulse_noise,
    "defocus-blur": _defocus_blur,
    "glass-blur": _glass_blur,
    "motion-blur": _motion_blur,
    "zoom-blur": _zoom_blur,
    "snow": _snow,
    "frost": _frost,
    "fog": _fog,
    "brightness": _brightness,
    "contrast": _contrast,
    "elastic-transform": _elastic_transform,
    "pixelate": _pixelate,
    "jpeg-compression": _jpeg_compression,
}
