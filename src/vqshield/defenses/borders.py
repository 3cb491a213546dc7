"""Images with wider borders, made of slices.

Their gradient is a sum in a fixed order on a GPU too, where that of torch's own padding is not.
"""

import torch
from torch import Tensor


def repeat_border(images: Tensor, reach: int) -> Tensor:
    """The outermost pixels repeated `reach` times on every side."""
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
