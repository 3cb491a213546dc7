"""Augmentation of a whole batch or epoch at once, on its device.

Crop and flip only choose which source pixel goes where, so they are one gather, without a padded copy.
"""

import torch
from torch import Tensor

from vqshield.core import checks


def crop_and_flip(images: Tensor, *, padding: int, flip: bool, generator: torch.Generator) -> Tensor:
    """Shift each image by up to ``padding`` pixels, mirrored at its edges, and flip it with probability 1/2.

    images: (n, channels, height, width), any dtype, on the generator's device.
    """
    n, channels, height, width = images.shape
    checks.whole("padding", padding, least=0, below=min(height, width))
    rows = _shifted(n, height, padding, generator)  # (n, height) source row of each row
    columns = _shifted(n, width, padding, generator)
    if flip:
        mirrored = torch.rand(n, 1, generator=generator, device=images.device) < 0.5
        columns = torch.where(mirrored, columns.flip(1), columns)
    image = torch.arange(n, device=images.device).view(n, 1, 1, 1)
    channel = torch.arange(channels, device=images.device).view(1, channels, 1, 1)
    return images[image, channel, rows.view(n, 1, height, 1), columns.view(n, 1, 1, width)]


def cutout(images: Tensor, *, size: int, fill: Tensor, generator: torch.Generator) -> Tensor:
    """Paint a square of side ``size``, centred anywhere in the image, in the colour ``fill`` (channels,)."""
    n, _, height, width = images.shape
    checks.whole("cutout", size, least=0, below=2 * min(height, width) + 1)
    if size == 0:
        return images
    rows, columns = (_covered(n, length, size, generator) for length in (height, width))
    inside = rows.view(n, 1, height, 1) & columns.view(n, 1, 1, width)
    return torch.where(inside, fill.to(images.dtype).view(1, -1, 1, 1), images)


def _shifted(n: int, length: int, padding: int, generator: torch.Generator) -> Tensor:
    """The source index of each image's rows or columns, reflected into 0..length-1."""
    device = generator.device
    shift = torch.randint(-padding, padding + 1, (n, 1), generator=generator, device=device)
    index = torch.arange(length, device=device) + shift
    return (length - 1) - (length - 1 - index.abs()).abs()


def _covered(n: int, length: int, size: int, generator: torch.Generator) -> Tensor:
    """Flags (n, length): which rows or columns the square covers; it may extend beyond the image."""
    device = generator.device
    start = torch.randint(0, length, (n, 1), generator=generator, device=device) - size // 2
    position = torch.arange(length, device=device)
    return (position >= start) & (position < start + size)
