"""The Triton kernel that puts images together again from the labels of their patches."""

import triton
import triton.language as tl

from vqshield.quantization.kernels.triton.parts import CENTRE


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
