"""Triton functions that several kernels share: how patches lie in memory, and which centre is nearest.

A program works on one image, or on a strip of one. Its patches lie in a workspace of rows of DP values: D of
the patch less CENTRE, then a one, then zeros. The one makes a cluster's size fall out of the same matrix
product as its sum. D = q·s² values a patch, DP and KP the powers of two that D+1 and K fit in, RB rows a
block.

Matrix products run on half-precision units, and are nearly as good as float32: a value is split into
hi + lo/2048, both half precision, 22 bits together; three products make an inner product, two a sum over a
cluster (the memberships are 0 and 1, exact). The workspace holds all hi and, LO values behind them, all lo,
ready for those units. Subtracting CENTRE first keeps the values small where their differences matter.
"""

import triton
import triton.language as tl

CENTRE = tl.constexpr(0.5)
SPLIT = tl.constexpr(2048.0)


@triton.jit
def corner(index, columns, S: tl.constexpr, SLIDING: tl.constexpr):
    """Row and column of the upper left pixel of a patch."""
    row = index // columns
    column = index - row * columns
    if not SLIDING:
        row, column = row * S, column * S
    return row, column


@triton.jit
def pixel(image, index, j, columns, H, W, ok, S: tl.constexpr, SLIDING: tl.constexpr):
    """Component j of patch index, straight from the image."""
    row, column = corner(index, columns, S, SLIDING)
    channel = j // (S * S)
    dy = (j // S) % S
    dx = j % S
    return tl.load(image + (channel * H + row + dy) * W + column + dx, mask=ok, other=0.0)


@triton.jit
def split(values):
    """A float32 value as hi + lo/2048 in half precision."""
    hi = values.to(tl.float16)
    lo = ((values - hi.to(tl.float32)) * SPLIT).to(tl.float16)
    return hi, lo


@triton.jit
def halves(x, LO, rows, DP: tl.constexpr):
    """Rows of the workspace as hi and lo, (RB, DP) each."""
    place = x + rows.to(tl.int64)[:, None] * DP + tl.arange(0, DP)[None, :]
    return tl.load(place), tl.load(place + LO)


@triton.jit
def joined(hi, lo):
    """The float32 values that split took apart."""
    return hi.to(tl.float32) + lo.to(tl.float32) * (1.0 / SPLIT)


@triton.jit
def row_of(x, LO, index, DP: tl.constexpr):
    """One row of the workspace in float32, (DP,)."""
    place = x + index * DP + tl.arange(0, DP)
    return joined(tl.load(place), tl.load(place + LO))


@triton.jit
def prepared(centres, K: tl.constexpr, D: tl.constexpr, KP: tl.constexpr, DP: tl.constexpr):
    """The centres ready for scores: transposed hi and lo, and half their squared norms, infinite beyond K."""
    used = tl.where(tl.arange(0, DP)[None, :] < D, centres, 0.0)
    norms = 0.5 * tl.sum(used * used, axis=1)
    norms = tl.where(tl.arange(0, KP) < K, norms, float("inf"))
    hi, lo = split(used)
    return tl.trans(hi), tl.trans(lo), norms


@triton.jit
def labels_of(hi, lo, centres_hi, centres_lo, norms):
    """The nearest centre of each row, by ½‖c‖² − x·c; the lowest index among equals."""
    minor = tl.dot(lo, centres_hi)
    minor = tl.dot(hi, centres_lo, minor)
    major = tl.dot(hi, centres_hi)
    return tl.argmin(norms[None, :] - (major + minor * (1.0 / SPLIT)), axis=1)
