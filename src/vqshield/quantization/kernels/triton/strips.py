"""Triton kernels for large images: each program takes a strip of one image's patches.

Partial sums go through memory and are added up in order by one program per image: no atomics, so the result
is the same in every run. An image that is done (active 0) is passed over.
"""

import triton
import triton.language as tl

from vqshield.quantization.kernels.triton.noise import init_word
from vqshield.quantization.kernels.triton.parts import (
    assign_and_sum,
    count_up_to,
    means,
    rebuild,
    row_of,
    store_gaps,
)


@triton.jit(do_not_specialize=["number"])
def pick_kernel(
    x_all, near_all, partial, gaps_all, centres_all, streams, key, number, n, padded_n, strips,
    KP: tl.constexpr, DP: tl.constexpr, CB: tl.constexpr, SB: tl.constexpr, STRIP: tl.constexpr,
):  # fmt: skip
    """Centre `number` of k-means++, the strip first, then the patch in it; its gaps from the others."""
    b = tl.program_id(0).to(tl.int64)
    LO = padded_n.to(tl.int64) * DP
    word = init_word(key, tl.load(streams + b), number)
    index = (word * n) >> 32
    if number > 0:
        zero = tl.zeros((), dtype=tl.float64)
        sums = partial + b * strips
        every, total = count_up_to(sums, 0, strips, zero, zero, SB)
        if total > 0:
            target = word.to(tl.float64) * 2.3283064365386963e-10 * total
            strip, end = count_up_to(sums, 0, strips, zero, target, SB)
            strip = tl.minimum(strip, strips - 1)
            earlier, before = count_up_to(sums, 0, strip, zero, zero, SB)
            first = strip * STRIP
            last = tl.minimum(first + STRIP, n)
            count, after = count_up_to(near_all + b * padded_n, first, last, before, target, CB)
            index = tl.minimum(first + count, last - 1).to(tl.int64)
    row = row_of(x_all + b * 2 * LO, LO, index, DP)
    store_gaps(gaps_all + b * KP, centres_all + b * KP * DP, row, KP, DP)
    tl.debug_barrier()
    tl.store(centres_all + (b * KP + number) * DP + tl.arange(0, DP), row)


@triton.jit
def random_kernel(
    x_all, centres_all, streams, key, n, padded_n, K: tl.constexpr, KP: tl.constexpr, DP: tl.constexpr,
):  # fmt: skip
    """Centres at K distinct places (Floyd's sampling)."""
    b = tl.program_id(0).to(tl.int64)
    LO = padded_n.to(tl.int64) * DP
    stream = tl.load(streams + b)
    chosen = tl.full((KP,), -1, dtype=tl.int64)
    for number in range(K):
        last = n - K + number
        candidate = (init_word(key, stream, number) * (last + 1)) >> 32
        taken = tl.sum((chosen == candidate).to(tl.int32)) > 0
        index = tl.where(taken, last, candidate)
        chosen = tl.where(tl.arange(0, KP) == number, index, chosen)
        row = row_of(x_all + b * 2 * LO, LO, index, DP)
        tl.store(centres_all + (b * KP + number) * DP + tl.arange(0, DP), row)


@triton.jit
def round_kernel(
    x_all, labels_all, centres_all, sums_all, changed_all, active, n, padded_n, strips, K: tl.constexpr,
    D: tl.constexpr, KP: tl.constexpr, DP: tl.constexpr, RB: tl.constexpr, STRIP: tl.constexpr,
):  # fmt: skip
    """One round of Lloyd's algorithm over a strip."""
    b = tl.program_id(1).to(tl.int64)
    if tl.load(active + b) != 0:
        strip = tl.program_id(0)
        LO = padded_n.to(tl.int64) * DP
        place = tl.arange(0, KP)[:, None] * DP + tl.arange(0, DP)[None, :]
        centres = tl.load(centres_all + b * KP * DP + place)
        first = strip * STRIP
        last = tl.minimum(first + STRIP, n)
        labels = labels_all + b * padded_n
        sums, changed = assign_and_sum(x_all + b * 2 * LO, LO, labels, centres, first, last, K, D, KP, DP, RB)
        tl.store(sums_all + (b * strips + strip) * KP * DP + place, sums)
        tl.store(changed_all + b * strips + strip, changed)


@triton.jit
def means_kernel(
    centres_all, sums_all, changed_all, active, strips, limit, is_first, D: tl.constexpr,
    KP: tl.constexpr, DP: tl.constexpr,
):  # fmt: skip
    """The strips' sums added up in order: new centres, and whether the image goes on."""
    b = tl.program_id(0).to(tl.int64)
    if tl.load(active + b) != 0:
        place = tl.arange(0, KP)[:, None] * DP + tl.arange(0, DP)[None, :]
        sums = tl.zeros((KP, DP), dtype=tl.float32)
        changed = tl.zeros((), dtype=tl.int32)
        for strip in range(strips):
            sums += tl.load(sums_all + (b * strips + strip) * KP * DP + place)
            changed += tl.load(changed_all + b * strips + strip)
        centres = tl.load(centres_all + b * KP * DP + place)
        tl.store(centres_all + b * KP * DP + place, means(sums, centres, D, DP))
        if (is_first == 0) & (changed <= limit):
            tl.store(active + b, 0)


@triton.jit
def rebuild_kernel(
    output, labels_all, similarity_all, centres_all, padded_n, patch_rows, columns, H, W,
    CHANNELS: tl.constexpr, CP: tl.constexpr, S: tl.constexpr, SLIDING: tl.constexpr, KP: tl.constexpr,
    DP: tl.constexpr, PB: tl.constexpr,
):  # fmt: skip
    """A strip of pixels of the output."""
    b = tl.program_id(1).to(tl.int64)
    first = tl.program_id(0) * PB
    rebuild(
        output + b * CHANNELS * H * W, labels_all + b * padded_n, similarity_all + b * padded_n,
        centres_all + b * KP * DP, first, tl.minimum(first + PB, H * W), patch_rows, columns, H, W,
        CHANNELS, CP, S, SLIDING, DP, PB,
    )  # fmt: skip
