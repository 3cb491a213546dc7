"""A codebook from some of an image's patches: k-means then costs what it does of a small image."""

from dataclasses import replace

import torch
from torch import Tensor

from vqshield.core import checks
from vqshield.quantization.kernels.base import Backend, Recipe
from vqshield.quantization.noise import Draw, Stage
from vqshield.quantization.patches import Disjoint

_BYTES_A_VALUE = 16  # of a patch that is taken: where its value lies, the value, and a copy


def sampled_codebook(backend: Backend, padded: Tensor, recipe: Recipe, draw: Draw, sample: int) -> Tensor:
    """The centres (B, k, d) of k-means over that many patches of each image, fewer than it has.

    The backend gets them as an image of one column, whose pixels they are: it adds its noise to them and
    starts among them as it does with all.
    """
    column = replace(recipe, grid=Disjoint(1))
    step = max(1, recipe.memory // (_BYTES_A_VALUE * sample * recipe.dimensions(padded)))
    found = []
    for start in range(0, max(1, len(padded)), step):  # of no images, the centres of none
        images, part = padded[start : start + step], draw[start : start + step]
        patches = recipe.grid.take(images, sampled_places(part, recipe.count(padded), sample))
        pixels = patches.transpose(1, 2)[..., None].contiguous()
        with checks.known((pixels, (0.0, 1.0))):
            found.append(backend.codebook(pixels, column, part))
    return torch.cat(found)


def sampled_places(draw: Draw, count: int, sample: int) -> Tensor:
    """The numbers (B, sample) of the patches: one at random from each of as many runs of about equal length,
    in the order of the grid, so that no part of an image is left out.
    """
    first = torch.arange(sample + 1, device=draw.streams.device) * count // sample
    return first[:-1] + ((draw.words(Stage.SAMPLE, 0, sample) * first.diff()) >> 32)
