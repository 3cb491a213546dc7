"""The second term of U_KL: how far apart the labels of x and of x' are, given the codebook.

Given a codebook c, patch p gets the label of the centre nearest to p + omega, omega ~ N(0, tau² I); the noise
is independent between patches, so the divergence of all labels is the sum over patches of the divergence
between two categorical distributions. Their probabilities are Gaussian measures of Voronoi cells.

With two centres a cell is a half-space: one Gaussian CDF, exact. With more, only the part of omega across
the perturbation p' − p is sampled. Along the perturbation a cell is an interval, the same one for p and for
p', so its probability is a difference of CDFs, whose logarithm is exact however small it is.
docs/certificates.md says why the estimate is finite without smoothing, and errs upwards.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from vqshield.certificates.numbers import positive
from vqshield.core import checks
from vqshield.core.errors import InvalidInputError
from vqshield.quantization.noise import Draw, Stage

_VALUES_A_BLOCK = 2**20  # 8 MiB a temporary: enough for a GPU, and not too far beyond a CPU's cache
_TINY = 1e-300


@dataclass(frozen=True, kw_only=True)
class LabelDivergence:
    """E over codebooks of the sum over patches of KL(labels of p_i ‖ labels of p'_i), in nats.

    standard_error: from the spread between codebooks, which holds that between lines too.
    bias: how much half as many lines would give more; the remaining error is about as large. 0: exact.
    bound: Σ‖p'_i − p_i‖²/2tau², which no codebook can exceed (data processing).
    """

    value: float
    standard_error: float
    bias: float
    bound: float
    exact: bool
    """Whether each codebook's sum is exact; the mean over codebooks is always an estimate."""
    codebooks: int
    patches: int
    lines: int  # samples of omega for each patch and codebook; 0 where none were needed


def label_divergence(
    *, patches: Tensor, moved: Tensor, codebooks: Tensor, tau: float, lines: int = 64, seed: int = 0
) -> LabelDivergence:
    """From patches (n, d) of x and of x', and codebooks (m, k, d) sampled at x, two or more.

    tau = 0 is refused: a patch whose label changes makes the divergence infinite.
    """
    points, targets, books = _checked(patches, moved, codebooks)
    scale = positive("tau", tau)
    checks.whole("seed", seed, least=0, below=2**64)
    if checks.whole("lines", lines, least=2) % 2:
        raise InvalidInputError(f"lines={lines} should be even: two halves tell the bias")
    exact = books.shape[1] <= 2
    found = []
    for number, centres in enumerate(books):
        if exact:
            found.append(_exact(points, targets, centres, scale).expand(2))
        else:
            draw = Draw(seed, torch.tensor([number], device=books.device))
            found.append(_along_lines(points, targets, centres, scale, lines, draw))
    sums, halves = torch.stack(found).double().cpu().unbind(1)
    return LabelDivergence(
        value=float(sums.mean()),
        standard_error=float(sums.std()) / math.sqrt(len(sums)),
        bias=float((halves - sums).mean()),
        bound=float((targets - points).square().sum()) / (2 * scale**2),
        exact=exact,
        codebooks=len(books),
        patches=len(points),
        lines=0 if exact else lines,
    )


def _exact(points: Tensor, targets: Tensor, centres: Tensor, tau: float) -> Tensor:
    """The sum over patches for one or two centres: the bisecting plane at a signed distance of each patch."""
    apart = centres[-1] - centres[0]
    length = apart.norm()
    if float(length) == 0:  # one centre, or two equal ones: nothing to tell apart
        return points.new_zeros(())
    middle, normal = centres.mean(0), apart / length
    distances = torch.stack([((middle - each) @ normal) / tau for each in (points, targets)])  # (2, n)
    logs = torch.special.log_ndtr(torch.stack([distances, -distances]))  # (cell, image, n)
    return _categorical(logs[:, 0], logs[:, 1]).sum()


def _along_lines(
    points: Tensor, targets: Tensor, centres: Tensor, tau: float, lines: int, draw: Draw
) -> Tensor:
    """The sum over patches by all lines, and by half of them (both halves' mean): (2,)."""
    centres = torch.unique(centres, dim=0)  # equal centres are one value of the output
    count, dimensions = points.shape
    block = max(1, _VALUES_A_BLOCK // (lines * len(centres)))
    total = points.new_zeros(2)
    for start in range(0, count, block):
        p, away = points[start : start + block], (targets - points)[start : start + block]
        length = away.norm(dim=1, keepdim=True)
        along = torch.where(length > 0, away / length.clamp(min=_TINY), 0.0)  # (n, d)
        values = len(p) * lines * dimensions
        noise = draw.normals(Stage.ASSIGNMENT, start * lines * dimensions, values)
        noise = noise.view(len(p), lines, dimensions)
        across = noise - (noise @ along[:, :, None]) * along[:, None]
        low, high = _intervals(p[:, None] + tau * across, tau * along, centres)
        found = high > low  # few lines meet more than a few of the cells
        low, high, shift = low[found], high[found], (length / tau).expand_as(found)[found]
        logs, moved = torch.full((2, *found.shape), -torch.inf, dtype=p.dtype, device=p.device)
        logs[found] = _log_probability(low, high)
        moved[found] = _log_probability(low - shift, high - shift)
        total[0] += _categorical(logs.logsumexp(2), moved.logsumexp(2)).sum() / lines
        halves = [each.unflatten(2, (2, lines // 2)).logsumexp(3) for each in (logs, moved)]
        total[1] += _categorical(*halves).sum() / lines
    return total


def _intervals(base: Tensor, along: Tensor, centres: Tensor) -> tuple[Tensor, Tensor]:
    """From where to where each centre is the nearest to base + t·along: two (k, n, lines).

    base (n, lines, d), along (n, d). Up to what all centres share, half the squared distance to centre j is
    A_j − t·B_j; centre j is nearest where none of the others' lines lies below its own. The centres come back
    by rising B, the order of their crossings.
    """
    slopes, order = (centres @ along.T).sort(dim=0)  # B, (k, n)
    heights = centres.square().sum(1)[:, None, None] / 2 - (base @ centres.T).permute(2, 0, 1)
    heights = heights.gather(0, order[:, :, None].expand_as(heights))  # A, (k, n, lines)
    low, high = torch.full_like(heights, -torch.inf), torch.full_like(heights, torch.inf)
    for number in range(1, len(centres)):
        steeper = slopes[number] - slopes[:number]  # (number, n)
        # Parallel lines never meet: the lower one is ahead for every t that has any probability.
        scale = torch.where(steeper > 0, 1 / steeper, 1 / _TINY)
        meet = (heights[number] - heights[:number]).mul_(scale[:, :, None])
        torch.minimum(high[:number], meet, out=high[:number])
        low[number] = meet.amax(0)
    return low, high


def _log_probability(low: Tensor, high: Tensor) -> Tensor:
    """ln P(low < t < high) of a standard normal t; from the nearer tail, so that no digits are lost."""
    mirrored = low > -high
    start, end = torch.where(mirrored, -high, low), torch.where(mirrored, -low, high)
    top, bottom = torch.special.log_ndtr(end), torch.special.log_ndtr(start)
    found: Tensor = top + torch.log1p(-torch.exp((bottom - top).clamp(max=0)))
    return found


def _categorical(logs: Tensor, moved: Tensor) -> Tensor:
    """Σ p·ln(p/p') over the first dimension, of logarithms; cells too thin for rounding count as nothing."""
    seen = torch.isfinite(logs) & torch.isfinite(moved)
    return torch.where(seen, logs.exp() * (logs - moved), 0.0).sum(0)


def _checked(patches: Tensor, moved: Tensor, codebooks: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    if patches.dim() != 2 or patches.shape != moved.shape:
        found = f"{tuple(patches.shape)} and {tuple(moved.shape)}"
        raise InvalidInputError(f"patches and moved of shapes {found} should be equal, (n, d)")
    if codebooks.dim() != 3 or codebooks.shape[2] != patches.shape[1] or len(codebooks) < 2:
        expected = f"(m, k, {patches.shape[1]}), m at least 2"
        raise InvalidInputError(f"codebooks of shape {tuple(codebooks.shape)} should be {expected}")
    for name, values in (("patches", patches), ("moved", moved), ("codebooks", codebooks)):
        checks.finite(name, values)
    return patches.double(), moved.double().to(patches.device), codebooks.double().to(patches.device)
