"""The Triton kernel that puts images together again from the labels of their patches."""

import triton
import triton.language as tl

from vqshield.quantization.kernels.triton.parts import CENTRE


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
