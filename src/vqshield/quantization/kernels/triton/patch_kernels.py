"""The Triton kernels of patches: cut with their noise, labelled, and images rebuilt from labels.

Noisy patches are made by whole rows: written in full sectors of memory, or labelled where they are made.
"""

import triton
import triton.language as tl

from vqshield.quantization.kernels.triton.parts import (
    CENTRE,
    box_muller,
    corner,
    joined,
    labels_of,
    prepared,
    random_words,
    split,
)


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
