"""k-means of any vectors: many small problems at once, on the kernels that find the codebooks of images.

The kernels get a problem as an image of one column whose pixels are the vectors, shifted and scaled into
[0, 1], without noise.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from vqshield.core import checks
from vqshield.core.errors import InvalidInputError
from vqshield.quantization import kernels
from vqshield.quantization.kernels import Backend, Recipe
from vqshield.quantization.noise import Draw
from vqshield.quantization.patches import Disjoint

_INTEGERS = 62  # bits of an int64 that sums may fill
_AT_ONCE = 2**22  # values whose distances are summed at once
_MOST_IN_TRITON = 2**13  # values of a codebook that one program of the GPU kernel holds


@dataclass(frozen=True)
class Clusters:
    """The result of k-means; for a single problem all three are without the first dimension.

    Args:
        centres: (B, k, d), of the points' dtype; a centre that no point is nearest to stays where it was.
        labels: (B, n), int64: the number of the centre nearest to each point, the lowest among equals.
        inertia: (B,), float64: the sum of the squared distances of the points to those centres.
    """

    centres: Tensor
    labels: Tensor
    inertia: Tensor


def kmeans(
    points: Tensor,
    k: int,
    *,
    iterations: int = 20,
    init: str = "kmeans++",
    tolerance: float = 0.0,
    restarts: int = 1,
    seed: int = 0,
    backend: str = "auto",
) -> Clusters:
    """k-means of many small problems at once, on the CPU or a GPU.

    A problem's result depends on its points, the settings and the seed alone, never on its batch. Distances
    are exact: the points are rounded to a grid as fine as float32 (coarser for vectors of hundreds of values)
    across the problem's widest dimension.

    Args:
        points: (B, n, d), or (n, d) for one problem; float32 or float64, finite.
        k: the number of centres, at most n.
        iterations: the most rounds of Lloyd's algorithm.
        init: "kmeans++" or "random", the points to start from.
        tolerance: a problem is done when at most this share of its points changes label (0: none).
        restarts: how many starts for each problem; the one with the least inertia is kept.
        seed: decides the starts.
        backend: "auto" or one of vqshield.quantization.kernels.list_backends().

    Raises:
        InvalidInputError: points or settings that cannot work.

    Example:
        >>> points = torch.tensor([[[0.0], [1.0], [7.0], [8.0]]])
        >>> found = vq.kmeans(points, 2)
        >>> found.centres.flatten().sort().values, found.inertia
        (tensor([0.5000, 7.5000]), tensor([1.], dtype=torch.float64))
    """
    _check(points, k)
    checks.whole("restarts", restarts, least=1, below=2**31)
    recipe = plain_recipe(k, iterations=iterations, init=init, tolerance=tolerance)
    low, span, pixels = _as_pixels(points.detach() if points.dim() == 3 else points.detach()[None])
    chosen = pick_backend(backend, points.device, k, points.shape[-1])
    scaled = best_centres(chosen, pixels, recipe, seed, restarts)
    labels, inertia = _spread(chosen, pixels, scaled, recipe)
    centres = (scaled.double() * span + low).to(points.dtype)
    clusters = centres, labels, inertia * span[:, 0, 0].square()
    return Clusters(*clusters) if points.dim() == 3 else Clusters(*(part[0] for part in clusters))


def best_centres(backend: Backend, pixels: Tensor, recipe: Recipe, seed: int, starts: int) -> Tensor:
    """The centres of the best of several starts, for points that are the pixels of images (B, d, h, w)."""
    best = _centres(backend, pixels, recipe, seed, 0)
    if starts == 1:
        return best
    least = _spread(backend, pixels, best, recipe)[1]
    for start in range(1, starts):
        other = _centres(backend, pixels, recipe, seed, start)
        inertia = _spread(backend, pixels, other, recipe)[1]
        best = torch.where((inertia < least)[:, None, None], other, best)
        least = torch.minimum(inertia, least)
    return best


def plain_recipe(codes: int, *, iterations: int, init: str, tolerance: float = 0.0) -> Recipe:
    """k-means of single pixels without noise."""
    return Recipe(grid=Disjoint(1), codes=codes, iterations=iterations, init=init, tolerance=tolerance)


def pick_backend(name: str, device: torch.device, codes: int, dimensions: int) -> Backend:
    """The backend of that name; "auto" is plain torch for codebooks too large for the GPU kernel."""
    padded = (1 << (codes - 1).bit_length()) * (1 << dimensions.bit_length())
    if name == "auto" and device.type == "cuda" and padded > _MOST_IN_TRITON:
        name = "torch"
    return kernels.get(name, device)


def _check(points: object, k: int) -> None:
    if not isinstance(points, Tensor) or points.dtype not in checks.IMAGE_DTYPES:
        kind = points.dtype if isinstance(points, Tensor) else type(points).__name__
        raise InvalidInputError(f"points of type {kind} should be a torch.float32 or torch.float64 tensor")
    if points.dim() not in (2, 3) or 0 in points.shape[-2:]:
        raise InvalidInputError(
            f"points of shape {tuple(points.shape)} should be (B, n, d) or (n, d), with at least one point"
        )
    checks.whole("k", k, least=1, below=checks.MOST_CODES + 1)
    if k > points.shape[-2]:
        raise InvalidInputError(f"k={k} should be at most the number of points n={points.shape[-2]}")
    checks.finite("points", points)


def _as_pixels(points: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The least values (B, 1, d) and width (B, 1, 1) of each problem, and its points as (B, d, n, 1)."""
    low, high = points.amin(1, keepdim=True), points.amax(1, keepdim=True)
    span = (high - low).amax(2, keepdim=True)
    if not bool(torch.isfinite(span).all()):
        raise InvalidInputError(f"points lie so far apart that {points.dtype} cannot hold their distance")
    span = torch.where(span > 0, span, 1.0)
    pixels = ((points - low) / span).transpose(1, 2)[..., None].contiguous()
    return low.double(), span.double(), pixels


def _centres(backend: Backend, pixels: Tensor, recipe: Recipe, seed: int, start: int) -> Tensor:
    streams = torch.full((len(pixels),), start, dtype=torch.int64, device=pixels.device)
    draw = Draw(checks.whole("seed", seed, least=0, below=2**64), streams)
    return backend.codebook(pixels, recipe, draw)


def _spread(backend: Backend, pixels: Tensor, centres: Tensor, recipe: Recipe) -> tuple[Tensor, Tensor]:
    """Labels, and inertia as a sum of whole numbers, which no order of summing changes."""
    points = pixels.flatten(2).transpose(1, 2)
    batch, count, dimensions = points.shape
    total = torch.zeros(batch, dtype=torch.int64, device=pixels.device)
    labels = backend.assignments(pixels, centres, recipe, Draw(0, total))  # no noise: any streams will do
    scale = 2.0 ** (_INTEGERS - math.ceil(math.log2(count * dimensions)) - 1)
    step = max(1, _AT_ONCE // (count * dimensions))
    for first in range(0, batch, step):
        part = slice(first, first + step)
        near = centres[part].gather(1, labels[part, :, None].expand(-1, -1, dimensions))
        squares = (points[part].double() - near.double()).square_()
        total[part] = squares.mul_(scale).long().sum((1, 2))
    return labels, total.double() / scale
