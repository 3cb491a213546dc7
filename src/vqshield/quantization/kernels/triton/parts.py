"""The quantizers' steps as Triton functions; small.py and strips.py put them together.

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
def count_up_to(near, first, last, carry, target, CB: tl.constexpr):
    """How many running sums of near, from carry on, are at most target; and the last running sum."""
    count = tl.zeros((), dtype=tl.int32)
    for c0 in range(first, last, CB):
        index = c0 + tl.arange(0, CB)
        ok = index < last
        values = tl.load(near + index, mask=ok, other=0.0).to(tl.float64)
        running = carry + tl.cumsum(values, axis=0)
        count += tl.sum(((running <= target) & ok).to(tl.int32))
        carry += tl.sum(values)
    return count, carry


@triton.jit
def store_gaps(gaps, centres, row, KP: tl.constexpr, DP: tl.constexpr):
    """Squared distances of a new centre from all in memory; those not chosen yet are of no use."""
    i, j = tl.arange(0, KP), tl.arange(0, DP)
    difference = tl.load(centres + i[:, None] * DP + j[None, :]) - row[None, :]
    tl.store(gaps + i, tl.sum(difference * difference, axis=1))


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


@triton.jit
def assign_and_sum(
    x, LO, labels, centres, first, last, K: tl.constexpr, D: tl.constexpr, KP: tl.constexpr,
    DP: tl.constexpr, RB: tl.constexpr,
):  # fmt: skip
    """One round over rows first … last−1: new labels, how many changed, and each cluster's sum and size."""
    centres_hi, centres_lo, norms = prepared(centres, K, D, KP, DP)
    major = tl.zeros((KP, DP), dtype=tl.float32)
    minor = tl.zeros((KP, DP), dtype=tl.float32)
    changed = tl.zeros((RB,), dtype=tl.int32)
    for r0 in range(first, last, RB):
        rows = r0 + tl.arange(0, RB)
        ok = rows < last
        hi, lo = halves(x, LO, rows, DP)
        label = labels_of(hi, lo, centres_hi, centres_lo, norms)
        before = tl.load(labels + rows, mask=ok, other=0)
        changed += ((label != before) & ok).to(tl.int32)
        tl.store(labels + rows, label, mask=ok)
        member = ((label[:, None] == tl.arange(0, KP)[None, :]) & ok[:, None]).to(tl.float16)
        member = tl.trans(member)
        major = tl.dot(member, hi, major)
        minor = tl.dot(member, lo, minor)
    return major + minor * (1.0 / SPLIT), tl.sum(changed)


@triton.jit
def means(sums, centres, D: tl.constexpr, DP: tl.constexpr):
    """The clusters' means; an empty cluster keeps its centre."""
    columns = tl.arange(0, DP)[None, :]
    sizes = tl.sum(tl.where(columns == D, sums, 0.0), axis=1)[:, None]
    return tl.where(sizes > 0, sums / tl.maximum(sizes, 1.0), centres)


@triton.jit
def rebuild(
    output, labels, similarity, centres, first, last, patch_rows, columns, H, W, CHANNELS: tl.constexpr,
    CP: tl.constexpr, S: tl.constexpr, SLIDING: tl.constexpr, DP: tl.constexpr, PB: tl.constexpr,
):  # fmt: skip
    """Pixels first … last−1 of the output, all channels."""
    channel = tl.arange(0, CP)[None, :]
    for p0 in range(first, last, PB):
        p = p0 + tl.arange(0, PB)
        ok = p < last
        y = p // W
        x = p - y * W
        if SLIDING:
            largest = tl.full((PB,), float("-inf"), dtype=tl.float32)
            for o in tl.static_range(S * S):
                wy, wx = y - o // S, x - o % S
                here = ok & (wy >= 0) & (wy < patch_rows) & (wx >= 0) & (wx < columns)
                one = tl.load(similarity + wy * columns + wx, mask=here, other=float("-inf"))
                largest = tl.maximum(largest, one)
            total = tl.zeros((PB, CP), dtype=tl.float32)
            weights = tl.zeros((PB,), dtype=tl.float32)
            for o in tl.static_range(S * S):
                wy, wx = y - o // S, x - o % S
                here = ok & (wy >= 0) & (wy < patch_rows) & (wx >= 0) & (wx < columns)
                window = wy * columns + wx
                one = tl.load(similarity + window, mask=here, other=float("-inf"))
                weight = tl.where(here, tl.exp(one - largest), 0.0)
                label = tl.load(labels + window, mask=here, other=0)
                place_ = label[:, None] * DP + channel * (S * S) + o
                value = tl.load(centres + place_, mask=here[:, None] & (channel < CHANNELS), other=0.0)
                total += value * weight[:, None]
                weights += weight
            result = total / tl.where(ok, weights, 1.0)[:, None]
        else:
            label = tl.load(labels + (y // S) * columns + x // S, mask=ok, other=0)
            place_ = label[:, None] * DP + channel * (S * S) + ((y % S) * S + x % S)[:, None]
            result = tl.load(centres + place_, mask=ok[:, None] & (channel < CHANNELS), other=0.0)
        result = tl.minimum(tl.maximum(result + CENTRE, 0.0), 1.0)
        target = output + channel * (H * W) + p[:, None]
        tl.store(target, result, mask=ok[:, None] & (channel < CHANNELS))
