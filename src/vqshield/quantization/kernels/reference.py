"""The reference backend: plain torch, exact, on any device with float64."""

from collections.abc import Iterator

import torch
from torch import Tensor

from vqshield.core import checks
from vqshield.quantization.fixed_point import FixedPoint
from vqshield.quantization.kernels.base import Recipe
from vqshield.quantization.kernels.lloyd import nearest, run_lloyd
from vqshield.quantization.kernels.noisy import NoisyPatches
from vqshield.quantization.kernels.starts import START
from vqshield.quantization.noise import LARGEST_NORMAL, Draw, Stage
from vqshield.quantization.patches import Disjoint, Sliding

_CACHE_FRIENDLY = 2**26  # on a CPU a batch is cut so that a chunk's temporaries stay near the cores
_VALUE = 8  # bytes of a float64


class Reference:
    """Batched over images; batches are processed in chunks, large images in strips."""

    name = "torch"
    dtypes: tuple[torch.dtype, ...] = checks.IMAGE_DTYPES

    def missing(self, device: torch.device) -> str | None:
        return "mps has no float64, which exact sums need" if device.type == "mps" else None

    def codebook(self, padded: Tensor, recipe: Recipe, draw: Draw) -> Tensor:
        dimensions = padded.shape[1] * recipe.grid.size**2
        centres = padded.new_empty(len(padded), recipe.codes, dimensions)
        for part in _chunks(padded, recipe):
            centres[part] = _fit(padded[part], recipe, draw[part])
        return centres

    def quantize(self, padded: Tensor, centres: Tensor, recipe: Recipe, draw: Draw) -> Tensor:
        output = torch.empty_like(padded)
        for part in _chunks(padded, recipe):
            output[part] = _replace(padded[part], centres[part].double(), recipe, draw[part])
        return output

    def shield(self, padded: Tensor, recipe: Recipe, draw: Draw) -> Tensor:
        output = torch.empty_like(padded)
        for part in _chunks(padded, recipe):
            centres = _fit(padded[part], recipe, draw[part])
            output[part] = _replace(padded[part], centres, recipe, draw[part])
        return output

    def assignments(self, padded: Tensor, centres: Tensor, recipe: Recipe, draw: Draw) -> Tensor:
        """The numbers (B, n) of the centres that quantize puts in place of the patches."""
        shape = len(padded), recipe.grid.count(*padded.shape[2:])
        labels = torch.empty(shape, dtype=torch.int64, device=padded.device)
        for part in _chunks(padded, recipe):
            noisy = noisy_patches(padded[part], recipe, recipe.tau, Stage.ASSIGNMENT, draw[part])
            labels[part] = _labels(noisy, centres[part])
        return labels

    def lloyd(self, patches: Tensor, start: Tensor, *, iterations: int, tolerance: float) -> Tensor:
        """Plain k-means; the patches are taken as images whose pixels are the vectors."""
        batch, count, dimensions = patches.shape
        images = patches.transpose(1, 2).reshape(batch, dimensions, count, 1)
        bound = max(1.0, float(torch.cat([patches.flatten(), start.flatten()]).abs().max()))
        fixed = FixedPoint.fitting(dimensions, bound=bound + 1)
        draw = Draw(0, torch.zeros(batch, dtype=torch.int64, device=patches.device))
        points = NoisyPatches(images, Disjoint(1), 0.0, Stage.CODEBOOK, draw, fixed).keep()
        found = run_lloyd(points, fixed.round(start), iterations=iterations, tolerance=tolerance)
        return found.to(patches.dtype)


def _chunks(padded: Tensor, recipe: Recipe) -> Iterator[slice]:
    patches = recipe.grid.count(*padded.shape[2:])
    values = patches * padded.shape[1] * recipe.grid.size**2
    an_image = _VALUE * (8 * values + 3 * patches * recipe.codes)  # patches with their words; scores
    limit = min(recipe.memory, _CACHE_FRIENDLY) if padded.device.type == "cpu" else recipe.memory
    step = max(1, limit // an_image)
    for start in range(0, len(padded), step):
        yield slice(start, start + step)


def noisy_patches(padded: Tensor, recipe: Recipe, scale: float, stage: Stage, draw: Draw) -> NoisyPatches:
    """The patches that k-means (scale sigma) or the assignment (scale tau) sees."""
    dimensions = padded.shape[1] * recipe.grid.size**2
    fixed = FixedPoint.fitting(dimensions, bound=1 + LARGEST_NORMAL * max(recipe.sigma, recipe.tau))
    return NoisyPatches(padded, recipe.grid, scale, stage, draw, fixed)


def _fit(padded: Tensor, recipe: Recipe, draw: Draw) -> Tensor:
    patches = noisy_patches(padded, recipe, recipe.sigma, Stage.CODEBOOK, draw)
    if patches.bytes_if_kept <= recipe.memory:
        patches = patches.keep()
    start = START[recipe.init](patches, recipe.codes)
    return run_lloyd(patches, start, iterations=recipe.iterations, tolerance=recipe.tolerance)


def _replace(padded: Tensor, centres: Tensor, recipe: Recipe, draw: Draw) -> Tensor:
    noisy = noisy_patches(padded, recipe, recipe.tau, Stage.ASSIGNMENT, draw)
    labels = _labels(noisy, centres)
    height, width = padded.shape[2:]
    if isinstance(recipe.grid, Sliding):
        similarity = _distances(noisy, centres, labels, recipe.weights_from).mul_(-recipe.beta)
        images = recipe.grid.rebuild(centres, labels, similarity, height, width)
    else:
        images = recipe.grid.rebuild(centres, labels, height, width)
    return images.clamp_(0, 1).to(padded.dtype)


def _labels(noisy: NoisyPatches, centres: Tensor) -> Tensor:
    on_grid = noisy.fixed.round(centres)
    return torch.cat([nearest(block, on_grid) for block in noisy], 1)


def _distances(noisy: NoisyPatches, centres: Tensor, labels: Tensor, weights_from: str) -> Tensor:
    """‖p̂_i − p_i‖² of every window (B, n), from the window as it came or from the noisy one."""
    distances = []
    for start in range(0, noisy.count, noisy.block):
        stop = min(noisy.count, start + noisy.block)
        if weights_from == "noisy":
            windows = noisy.make(start, stop)
        else:
            windows = noisy.grid.cut(noisy.padded, start, stop).double()
        index = labels[:, start:stop, None].expand_as(windows)
        distances.append(_ordered_sum((windows - centres.gather(1, index)).square_()))
    return torch.cat(distances, 1)


def _ordered_sum(values: Tensor) -> Tensor:
    """The sum over the last dimension, first to last: clean windows are not on the exact grid, and a sum
    whose order torch may choose by the batch's shape could differ in its last bit.
    """
    total = values[..., 0].clone()
    for component in values.unbind(-1)[1:]:
        total += component
    return total
