"""The Triton kernels that find the codebook of a small image: one program, its patches in the cache."""

import triton
import triton.language as tl

from vqshield.clustering.triton.noise import init_word
from vqshield.clustering.triton.parts import assign_and_sum, count_up_to, means, nearer, row_of


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


@triton.jit
def plus_plus_kernel(
    x_all, near_all, centres_all, streams, key, n, padded_n,
    K: tl.constexpr, KP: tl.constexpr, DP: tl.constexpr, NB: tl.constexpr, CB: tl.constexpr,
):  # fmt: skip
    """k-means++: each next centre a patch drawn by its squared distance from the nearest so far."""
    b = tl.program_id(0).to(tl.int64)
    LO = padded_n.to(tl.int64) * DP
    x = x_all + b * 2 * LO
    near = near_all + b * padded_n
    memory = centres_all + b * KP * DP
    stream = tl.load(streams + b)
    j = tl.arange(0, DP)
    centre = row_of(x, LO, (init_word(key, stream, 0) * n) >> 32, DP)
    tl.store(memory + j, centre)
    for number in range(1, K):
        total = nearer(x, LO, near, centre, number, 0, n, DP, NB)
        tl.debug_barrier()
        word = init_word(key, stream, number)
        target = word.to(tl.float64) * 2.3283064365386963e-10 * total
        count, _ = count_up_to(near, 0, n, tl.zeros((), dtype=tl.float64), target, CB)
        index = tl.where(total > 0, tl.minimum(count, n - 1).to(tl.int64), (word * n) >> 32)
        centre = row_of(x, LO, index, DP)
        tl.store(memory + number * DP + j, centre)
        tl.debug_barrier()
