"""The Triton kernels of Lloyd's rounds: each program takes a strip of one image's patches.

Partial sums go through memory and are added up in order by one program per image: no atomics, so the result
is the same in every run. An image that is done (active 0) is passed over.
"""

import triton
import triton.language as tl

from vqshield.quantization.kernels.triton.parts import SPLIT, halves, labels_of, prepared


@triton.jit
def round_kernel(
    x_all, labels_all, centres_all, sums_all, changed_all, active, n, padded_n, strips, K: tl.constexpr,
    D: tl.constexpr, KP: tl.constexpr, DP: tl.constexpr, RB: tl.constexpr, STRIP: tl.constexpr,
):  # fmt: skip
    """One round over a strip: new labels, how many changed, and each cluster's sum and size."""
    b = tl.program_id(1).to(tl.int64)
    if tl.load(active + b) != 0:
        strip = tl.program_id(0)
        LO = padded_n.to(tl.int64) * DP
        x, labels = x_all + b * 2 * LO, labels_all + b * padded_n
        place = tl.arange(0, KP)[:, None] * DP + tl.arange(0, DP)[None, :]
        centres = tl.load(centres_all + b * KP * DP + place)
        centres_hi, centres_lo, norms = prepared(centres, K, D, KP, DP)
        major = tl.zeros((KP, DP), dtype=tl.float32)
        minor = tl.zeros((KP, DP), dtype=tl.float32)
        changed = tl.zeros((RB,), dtype=tl.int32)
        first = strip * STRIP
        last = tl.minimum(first + STRIP, n)
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
        tl.store(sums_all + (b * strips + strip) * KP * DP + place, major + minor * (1.0 / SPLIT))
        tl.store(changed_all + b * strips + strip, tl.sum(changed))


@triton.jit
def means_kernel(
    centres_all, sums_all, changed_all, active, strips, limit, is_first, D: tl.constexpr,
    KP: tl.constexpr, DP: tl.constexpr,
):  # fmt: skip
    """The strips' sums added up in order: new centres, and whether the image goes on.

    A centre is the mean of its cluster; an empty cluster keeps its centre.
    """
    b = tl.program_id(0).to(tl.int64)
    if tl.load(active + b) != 0:
        columns = tl.arange(0, DP)[None, :]
        place = tl.arange(0, KP)[:, None] * DP + columns
        sums = tl.zeros((KP, DP), dtype=tl.float32)
        changed = tl.zeros((), dtype=tl.int32)
        for strip in range(strips):
            sums += tl.load(sums_all + (b * strips + strip) * KP * DP + place)
            changed += tl.load(changed_all + b * strips + strip)
        centres = tl.load(centres_all + b * KP * DP + place)
        sizes = tl.sum(tl.where(columns == D, sums, 0.0), axis=1)[:, None]
        means = tl.where(sizes > 0, sums / tl.maximum(sizes, 1.0), centres)
        tl.store(centres_all + b * KP * DP + place, means)
        if (is_first == 0) & (changed <= limit):
            tl.store(active + b, 0)
