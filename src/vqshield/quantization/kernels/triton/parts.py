"""Triton functions that several kernels share: patches in memory, the nearest centre, random numbers.

A program works on one image, or on a strip of one. Its patches lie in a workspace of rows of DP values: D of
the patch less CENTRE, then a one, then zeros. The one makes a cluster's size fall out of the same matrix
product as its sum. D = q·s² values a patch, DP and KP the powers of two that D+1 and K fit in, RB rows a
block.

Matrix products run on half-precision units, and are nearly as good as float32: a value is split into
hi + lo/2048, both half precision, 22 bits together; three products make an inner product, two a sum over a
cluster (the memberships are 0 and 1, exact). The workspace holds all hi and, LO values behind them, all lo,
ready for those units. Subtracting CENTRE first keeps the values small where their differences matter.

The random words are those of quantization.noise; normal values are float32.
"""

import triton
import triton.language as tl

CENTRE = tl.constexpr(0.5)
SPLIT = tl.constexpr(2048.0)
INIT = tl.constexpr(2)  # the stage of vqshield.quantization.noise.Stage


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


@triton.jit
def product(a, FACTOR: tl.constexpr):
    """The upper and the lower half of a 64-bit product: one instruction."""
    wide = a.to(tl.uint64) * FACTOR
    return (wide >> 32).to(tl.uint32), wide.to(tl.uint32)


@triton.jit
def random_words(key, stream, STAGE: tl.constexpr, block):
    """Philox 4x32-10: four 32-bit words for each counter block."""
    seed = tl.load(key)
    k0, k1 = seed.to(tl.uint32), (seed >> 32).to(tl.uint32)
    c0 = block.to(tl.uint32)
    c2, c3 = stream.to(tl.uint32), (stream >> 32).to(tl.uint32)
    c1 = c2 * 0 + STAGE
    for _ in tl.static_range(10):
        upper0, lower0 = product(c0, 0xD2511F53)
        upper2, lower2 = product(c2, 0xCD9E8D57)
        c0, c1, c2, c3 = upper2 ^ c1 ^ k0, lower2, upper0 ^ c3 ^ k1, lower0
        k0, k1 = k0 + 0x9E3779B9, k1 + 0xBB67AE85
    return c0, c1, c2, c3


@triton.jit
def box_muller(a, b):
    """Two normal values from two words."""
    radius = tl.sqrt(-2.0 * tl.log(((a >> 1).to(tl.float32) + 0.5) * 4.656612873077393e-10))
    # The angle is quarter·π/2 + t with |t| <= π/4, both read off the bits; sine and cosine by polynomials.
    shifted = b + 0x20000000
    quarter = shifted >> 30
    t = ((shifted & 0x3FFFFFFF).to(tl.int32) - 0x20000000).to(tl.float32) * 1.4629180792671596e-09
    tt = t * t
    sine = t + t * tt * (-1.6666654611e-1 + tt * (8.3321608736e-3 - tt * 1.9515295891e-4))
    cosine = 1.0 - 0.5 * tt + tt * tt * (4.166664568e-2 + tt * (-1.388731625e-3 + tt * 2.443315712e-5))
    swap = (quarter & 1) != 0
    along = tl.where(swap, sine, cosine)
    across = tl.where(swap, cosine, sine)
    along = tl.where((quarter == 1) | (quarter == 2), -along, along)
    across = tl.where(quarter >= 2, -across, across)
    return radius * along, radius * across


@triton.jit
def init_word(key, stream, j):
    """Word j of the INIT stage, as a 64-bit integer."""
    number = tl.full((), 0, dtype=tl.int32) + j
    lane = number % 4
    w0, w1, w2, w3 = random_words(key, stream, INIT, number // 4)
    word = tl.where(lane == 0, w0, tl.where(lane == 1, w1, tl.where(lane == 2, w2, w3)))
    return word.to(tl.int64)
