"""Lloyd's rounds for a small image and few codes: one program, its patches in the cache."""

import triton
import triton.language as tl

from vqshield.quantization.kernels.triton.parts import assign_and_sum, means


@triton.jit
def rounds_kernel(
    x_all, labels_all, centres_all, n, padded_n, limit, iterations,
    K: tl.constexpr, D: tl.constexpr, KP: tl.constexpr, DP: tl.constexpr, RB: tl.constexpr,
):  # fmt: skip
    """Lloyd's algorithm for image number program_id, on the centres in centres_all."""
    b = tl.program_id(0).to(tl.int64)
    LO = padded_n.to(tl.int64) * DP
    x = x_all + b * 2 * LO
    labels = labels_all + b * padded_n
    memory = centres_all + b * KP * DP
    place = tl.arange(0, KP)[:, None] * DP + tl.arange(0, DP)[None, :]
    changed = n + 1
    done = 0
    while (done < iterations) & (changed > limit):
        tl.debug_barrier()  # the centres were stored by other threads than will load them
        centres = tl.load(memory + place)
        sums, moved = assign_and_sum(x, LO, labels, centres, 0, n, K, D, KP, DP, RB)
        tl.debug_barrier()
        tl.store(memory + place, means(sums, centres, D, DP))
        # The first round has no labels to compare with: it never ends the search.
        changed = tl.where(done == 0, n + 1, moved)
        done += 1
