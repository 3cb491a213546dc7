"""The Triton kernels of the quantizers: noisy patches, k-means, labels, and images rebuilt from these.

Noisy patches are made by whole rows: written in full sectors of memory, or labelled where they are made.

k-means++ passes over patches whose centre is so near that, by the triangle inequality, the new one cannot be
nearer: the others are listed, in order, and taken from the list in full blocks.

A program of a round takes a strip of one image's patches. Partial sums go through memory and are added up in
order by one program per image: without atomics, every run gives the same result.
"""

import triton
import triton.language as tl

from vqshield.quantization.kernels.triton.parts import (
    CENTRE,
    SPLIT,
    box_muller,
    corner,
    halves,
    init_word,
    joined,
    labels_of,
    prepared,
    random_words,
    row_of,
    split,
)  # fmt: skip


@triton.jit
def noise_of(
    key, stream, first, STAGE: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, RB: tl.constexpr,
    QB: tl.constexpr,
):  # fmt: skip
    """Normal values for patches first … first+RB−1, (RB, DP); first is a multiple of four.

    None is drawn twice: the values of all patches follow each other in QB counter blocks, and each patch
    takes its own from there.
    """
    q = first // 4 * D + tl.arange(0, QB)
    w0, w1, w2, w3 = random_words(key, stream, STAGE, q)
    z0, z1 = box_muller(w0, w1)
    z2, z3 = box_muller(w2, w3)
    values = tl.interleave(tl.interleave(z0, z2), tl.interleave(z1, z3))
    e = tl.arange(0, RB * DP)
    return tl.reshape(tl.gather(values, e // DP * D + tl.minimum(e % DP, D - 1), 0), (RB, DP))


@triton.jit
def places(
    rows, n, columns, H, W, S: tl.constexpr, SLIDING: tl.constexpr, D: tl.constexpr, DP: tl.constexpr,
):  # fmt: skip
    """Where in an image the pixels of patches lie, (RB, DP); the last one's in place of what is none, so that
    loads need no mask.
    """
    row, column = corner(tl.minimum(rows, n - 1), columns, S, SLIDING)
    j = tl.minimum(tl.arange(0, DP), D - 1)
    inside = ((j // (S * S)) * H + (j // S) % S) * W + j % S
    return (row * W + column)[:, None] + inside[None, :]


@triton.jit
def patches_kernel(
    images, x_all, streams, key, batch, n, padded_n, scale, columns, H, W, STAGE: tl.constexpr,
    CHANNELS: tl.constexpr, S: tl.constexpr, SLIDING: tl.constexpr, D: tl.constexpr, DP: tl.constexpr,
    RB: tl.constexpr, QB: tl.constexpr, STEPS: tl.constexpr,
):  # fmt: skip
    """RB noisy patches of each of STEPS images into the workspaces, the one and the zeros behind them too."""
    LO = padded_n.to(tl.int64) * DP
    first = tl.program_id(0) * RB
    rows = first + tl.arange(0, RB)
    j = tl.arange(0, DP)[None, :]
    used = (rows < n)[:, None] & (j < D)
    source = places(rows, n, columns, H, W, S, SLIDING, D, DP)
    target = rows.to(tl.int64)[:, None] * DP + j
    behind = tl.where(j == D, 1.0, 0.0)
    start = tl.program_id(1) * STEPS
    for number in range(start, tl.minimum(start + STEPS, batch)):
        b = tl.zeros((), dtype=tl.int64) + number
        clean = tl.load(images + b * CHANNELS * H * W + source)
        noise = noise_of(key, tl.load(streams + b), first, STAGE, D, DP, RB, QB)
        hi, lo = split(tl.where(used, clean + noise * scale - CENTRE, behind))
        x = x_all + b * 2 * LO + target
        tl.store(x, hi)
        tl.store(x + LO, lo)


@triton.jit
def listed(target, values, keep, count):
    """The values to keep, written in order behind the first `count`; and how many there are then."""
    ones = keep.to(tl.int32)
    place = count + tl.cumsum(ones, axis=0) - 1
    tl.store(target + place, values, mask=keep)
    return count + tl.sum(ones)


@triton.jit(do_not_specialize=["number"])
def near_kernel(
    x_all, near_all, owners_all, gaps_all, todo_all, partial, centres_all, number, n, padded_n, strips,
    KP: tl.constexpr, DP: tl.constexpr, NB: tl.constexpr, CB: tl.constexpr, STRIP: tl.constexpr,
):  # fmt: skip
    """Squared distances of a strip's rows to the nearest of `number` centres in near, and which it is in
    owners; the strip's sum of them. gaps are the last centre's from the earlier ones.
    """
    b = tl.program_id(1).to(tl.int64)
    strip = tl.program_id(0)
    LO = padded_n.to(tl.int64) * DP
    first = strip.to(tl.int64) * STRIP
    size = tl.minimum(STRIP, n - strip * STRIP)
    at_strip = b * padded_n + first
    x, gaps = x_all + b * 2 * LO + first * DP, gaps_all + b * KP
    near, owners, todo = near_all + at_strip, owners_all + at_strip, todo_all + at_strip
    j = tl.arange(0, DP)
    centre = tl.load(centres_all + (b * KP + number - 1) * DP + j)
    count = tl.zeros((), dtype=tl.int32)
    for c0 in range(0, size, CB):
        rows = c0 + tl.arange(0, CB)
        ok = rows < size
        if number > 1:
            before = tl.load(near + rows, mask=ok, other=0.0)
            owner = tl.load(owners + rows, mask=ok, other=0)
            # ‖new − own‖ >= 2·‖x − own‖ leaves x where it is; a little is left for rounding.
            count = listed(todo, rows, ok & (tl.load(gaps + owner) < 4.001 * before), count)
        else:
            tl.store(todo + rows, rows, mask=ok)
            count = size + 0
    tl.debug_barrier()
    for c0 in range(0, count, NB):
        at = c0 + tl.arange(0, NB)
        ok = at < count
        rows = tl.load(todo + at, mask=ok, other=0)
        place = rows[:, None] * DP + j[None, :]  # rows are few enough for 32-bit places
        difference = joined(tl.load(x + place), tl.load(x + LO + place)) - centre[None, :]
        distance = tl.sum(difference * difference, axis=1)
        before = tl.where(number > 1, tl.load(near + rows, mask=ok, other=0.0), float("inf"))
        nearer = ok & (distance < before)
        tl.store(near + rows, distance, mask=nearer)
        tl.store(owners + rows, tl.zeros((NB,), dtype=tl.int32) + (number - 1), mask=nearer)
    tl.debug_barrier()
    total = tl.zeros((CB,), dtype=tl.float64)
    for c0 in range(0, size, CB):
        rows = c0 + tl.arange(0, CB)
        total += tl.load(near + rows, mask=rows < size, other=0.0).to(tl.float64)
    tl.store(partial + b * strips + strip, tl.sum(total))


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


@triton.jit
def label_kernel(
    images, labels_all, similarity_all, centres_all, streams, key, n, padded_n, columns, H, W, scale, beta,
    STAGE: tl.constexpr, CHANNELS: tl.constexpr, S: tl.constexpr, SLIDING: tl.constexpr, NOISY: tl.constexpr,
    K: tl.constexpr, D: tl.constexpr, KP: tl.constexpr, DP: tl.constexpr, RB: tl.constexpr,
    QB: tl.constexpr, STRIP: tl.constexpr,
):  # fmt: skip
    """Labels of a strip's noisy patches, and for sliding windows −beta·‖p̂ − p‖²."""
    b = tl.program_id(1).to(tl.int64)
    stream = tl.load(streams + b)
    image, at, memory = images + b * CHANNELS * H * W, b * padded_n, centres_all + b * KP * DP
    j = tl.arange(0, DP)[None, :]
    centres_hi, centres_lo, norms = prepared(
        tl.load(memory + tl.arange(0, KP)[:, None] * DP + j), K, D, KP, DP
    )
    start = tl.program_id(0) * STRIP
    for first in range(start, tl.minimum(start + STRIP, n), RB):
        rows = first + tl.arange(0, RB)
        ok = rows < n
        clean = tl.load(image + places(rows, n, columns, H, W, S, SLIDING, D, DP))
        noise = noise_of(key, stream, first, STAGE, D, DP, RB, QB)
        hi, lo = split(clean + noise * scale - CENTRE)  # beyond D, the centres are zero
        label = labels_of(hi, lo, centres_hi, centres_lo, norms)
        tl.store(labels_all + at + rows, label, mask=ok)
        if SLIDING:
            patch = joined(hi, lo) if NOISY else clean - CENTRE
            difference = tl.where(j < D, patch - tl.load(memory + label[:, None] * DP + j), 0.0)
            similarity = -beta * tl.sum(difference * difference, axis=1)
            tl.store(similarity_all + at + rows, similarity, mask=ok)


@triton.jit
def rebuild_kernel(
    output_all, labels_all, similarity_all, centres_all, padded_n, patch_rows, columns, H, W,
    CHANNELS: tl.constexpr, CP: tl.constexpr, S: tl.constexpr, SLIDING: tl.constexpr, KP: tl.constexpr,
    DP: tl.constexpr, PB: tl.constexpr,
):  # fmt: skip
    """PB pixels of the output, all channels."""
    b = tl.program_id(1).to(tl.int64)
    output, centres = output_all + b * CHANNELS * H * W, centres_all + b * KP * DP
    labels, similarity = labels_all + b * padded_n, similarity_all + b * padded_n
    channel = tl.arange(0, CP)[None, :]
    p = tl.program_id(0) * PB + tl.arange(0, PB)
    ok = p < H * W
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
            place = label[:, None] * DP + channel * (S * S) + o
            value = tl.load(centres + place, mask=here[:, None] & (channel < CHANNELS), other=0.0)
            total += value * weight[:, None]
            weights += weight
        result = total / tl.where(ok, weights, 1.0)[:, None]
    else:
        label = tl.load(labels + (y // S) * columns + x // S, mask=ok, other=0)
        place = label[:, None] * DP + channel * (S * S) + ((y % S) * S + x % S)[:, None]
        result = tl.load(centres + place, mask=ok[:, None] & (channel < CHANNELS), other=0.0)
    result = tl.minimum(tl.maximum(result + CENTRE, 0.0), 1.0)
    target = output + channel * (H * W) + p[:, None]
    tl.store(target, result, mask=ok[:, None] & (channel < CHANNELS))
