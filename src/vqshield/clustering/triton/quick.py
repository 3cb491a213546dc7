"""Noisy patches with little arithmetic beside the noise itself."""

import triton
import triton.language as tl

from vqshield.clustering.triton.noise import box_muller
from vqshield.clustering.triton.parts import CENTRE, split


@triton.jit
def product(a, FACTOR: tl.constexpr):
    """The upper and the lower half of a 64-bit product: one instruction."""
    wide = a.to(tl.uint64) * FACTOR
    return (wide >> 32).to(tl.uint32), wide.to(tl.uint32)


@triton.jit
def words(k0, k1, stream, STAGE: tl.constexpr, block):
    """Philox 4x32-10, as vqshield.noise has it: four words for each counter block (uint32)."""
    c0 = block
    c2, c3 = stream.to(tl.uint32), (stream >> 32).to(tl.uint32)
    c1 = c2 * 0 + STAGE
    for _ in tl.static_range(10):
        upper0, lower0 = product(c0, 0xD2511F53)
        upper2, lower2 = product(c2, 0xCD9E8D57)
        c0, c1, c2, c3 = upper2 ^ c1 ^ k0, lower2, upper0 ^ c3 ^ k1, lower0
        k0, k1 = k0 + 0x9E3779B9, k1 + 0xBB67AE85
    return c0, c1, c2, c3


@triton.jit
def patches_kernel(
    images, x_all, streams, key, batch, total, padded_n, scale, columns, H, W, STAGE: tl.constexpr,
    CHANNELS: tl.constexpr, S: tl.constexpr, SLIDING: tl.constexpr, D: tl.constexpr, DP: tl.constexpr,
    QB: tl.constexpr, STEPS: tl.constexpr,
):  # fmt: skip
    """Noisy patches into the workspaces: four values a counter block, none drawn twice.

    A program writes the same values of STEPS images: where they come from and go to is found out once.
    """
    LO = padded_n.to(tl.int64) * DP
    seed = tl.load(key)
    k0, k1 = seed.to(tl.uint32), (seed >> 32).to(tl.uint32)
    q = tl.program_id(0) * QB + tl.arange(0, QB)
    e = 4 * tl.program_id(0) * QB + tl.arange(0, 4 * QB)
    ok = e < total
    index = e // D
    j = e - index * D
    row = index // columns
    column = index - row * columns
    if not SLIDING:
        row, column = row * S, column * S
    source = ((j // (S * S)) * H + row + (j // S) % S) * W + column + j % S
    target = index * DP + j
    first = tl.program_id(1) * STEPS
    for number in range(first, tl.minimum(first + STEPS, batch)):
        b = tl.zeros((), dtype=tl.int64) + number
        w0, w1, w2, w3 = words(k0, k1, tl.load(streams + b), STAGE, q.to(tl.uint32))
        z0, z1 = box_muller(w0, w1)
        z2, z3 = box_muller(w2, w3)
        noise = tl.interleave(tl.interleave(z0, z2), tl.interleave(z1, z3)) * scale
        clean = tl.load(images + b * CHANNELS * H * W + source, mask=ok, other=0.0)
        hi, lo = split(clean + noise - CENTRE)
        x = x_all + b * 2 * LO
        tl.store(x + target, hi, mask=ok)
        tl.store(x + LO + target, lo, mask=ok)
