"""The random numbers of quantization.noise as Triton functions: the same words, normal values in float32."""

import triton
import triton.language as tl

INIT = tl.constexpr(2)  # the stage of vqshield.quantization.noise.Stage


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
