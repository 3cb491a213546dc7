"""k-means that looks again only at patches which can change: the same results, far fewer operations.

Lloyd's rounds keep for each patch a slack: how much nearer its centre is than any other, at least. Centres
that move use it up; while some is left the patch keeps its label, unread (Hamerly 2010). The few patches that
change label move from one cluster's sum to another's, so sums are kept and not made again. k-means++ passes
over patches whose centre is so near that, by the triangle inequality, the new one cannot be nearer.

Such patches are listed, in order, and taken from the list in full blocks. No atomics: the same in every run.
"""

import triton
import triton.language as tl

from vqshield.quantization.kernels.triton.noise import init_word
from vqshield.quantization.kernels.triton.parts import SPLIT, count_up_to, joined, row_of, store_gaps

BIAS = tl.constexpr(6.103515625e-05)  # keeps packed scores positive where rounding leaves them below zero
DOUBT = tl.constexpr(1e-6)  # rounding errors of a score are smaller, for norms of about one
ROW, OLD = tl.constexpr(2**18), tl.constexpr(2**9)  # a move in 31 bits: row, old label, new label
WORD = tl.constexpr(2.3283064365386963e-10)  # 2^-32


@triton.jit
def listed(target, values, keep, count):
    """The values to keep, written in order behind the first `count`; and how many there are then."""
    ones = keep.to(tl.int32)
    place = count + tl.cumsum(ones, axis=0) - 1
    tl.store(target + place, values, mask=keep)
    return count + tl.sum(ones)


@triton.jit
def taken(x, LO, rows, DP: tl.constexpr):
    """Rows of the workspace as hi and lo; rows are few enough for 32-bit places."""
    place = rows[:, None] * DP + tl.arange(0, DP)[None, :]
    return tl.load(x + place), tl.load(x + LO + place)


@triton.jit
def approach(
    x, LO, near, owners, gaps, todo, centre, number, size, DP: tl.constexpr, CB: tl.constexpr,
    NB: tl.constexpr,
):  # fmt: skip
    """Squared distances of rows 0 … size−1 to the nearest of `number` centres, of which centre is the last,
    in near, and which it is in owners; returns their sum. gaps are centre's from the earlier ones.
    """
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
        hi, lo = taken(x, LO, rows, DP)
        difference = joined(hi, lo) - centre[None, :]
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
    return tl.sum(total)


@triton.jit
def operands(centres, K: tl.constexpr, D: tl.constexpr, KP: tl.constexpr, DP: tl.constexpr):
    """Minus the centres as three half-precision matrices (DP, KP), to multiply hi, lo and hi with; and half
    their squared norms. lo is 2048 times what it stands for, so its matrix is as much smaller.
    """
    used = tl.where(tl.arange(0, DP)[None, :] < D, centres, 0.0)
    norms = 0.5 * tl.sum(used * used, axis=1)
    norms = tl.where(tl.arange(0, KP) < K, norms, 1e30)
    hi = (-used).to(tl.float16)
    rest = (-used - hi.to(tl.float32)).to(tl.float16)
    small = (hi.to(tl.float32) * (1.0 / SPLIT)).to(tl.float16)
    return tl.trans(hi), tl.trans(small), tl.trans(rest), norms


@triton.jit
def leader(best, second, other, other_second):
    """The two smallest of two pairs."""
    behind = tl.minimum(tl.maximum(best, other), tl.minimum(second, other_second))
    return tl.minimum(best, other), behind


@triton.jit
def as_float(bits):
    """The float32 value that has these bits."""
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def as_bits(values):
    """The bits of float32 values; of positive ones they have the same order."""
    return values.to(tl.int32, bitcast=True)


@triton.jit
def reassign(
    x, LO, states, squares, todo, centres, count, K: tl.constexpr, D: tl.constexpr, KP: tl.constexpr,
    DP: tl.constexpr, RB: tl.constexpr,
):  # fmt: skip
    """New states of the listed rows; in the list's place, what has moved where, −1 for what has not."""
    hi_c, small_c, rest_c, norms = operands(centres, K, D, KP, DP)
    i = tl.arange(0, KP)[None, :]
    start = tl.zeros((RB, KP), dtype=tl.float32) + norms[None, :]
    for r0 in range(0, count, RB):
        at = r0 + tl.arange(0, RB)
        ok = at < count
        rows = tl.load(todo + at, mask=ok, other=0)
        hi, lo = taken(x, LO, rows, DP)
        square = tl.load(squares + rows)
        before = tl.load(states + rows) & (2 * KP - 1)
        score = tl.dot(lo, small_c, start)
        score = tl.dot(hi, rest_c, score)
        score = tl.dot(hi, hi_c, score) + square[:, None]
        # Half the squared distance, and in its lowest bits which centre: one minimum finds both.
        packed = (as_bits(score) & -KP) | i
        best, second = tl.reduce((packed, tl.full((RB, KP), 0x7F000000, dtype=tl.int32)), 1, leader)
        label = best & (KP - 1)
        doubt = DOUBT * (1.0 + square) + as_float(best) * (KP * 1.2e-7)
        upper = tl.sqrt(2.0 * tl.maximum(as_float(best) - BIAS + doubt, 0.0))
        lower = tl.sqrt(2.0 * tl.maximum(as_float(second) - BIAS - doubt, 0.0))
        state = (as_bits(lower - upper) & (-2 * KP)) | label
        tl.store(states + rows, state, mask=ok)
        change = rows * ROW + before * OLD + label
        tl.store(todo + at, tl.where(label == before, -1, change), mask=ok)


@triton.jit
def flow(
    x, LO, moves, moved, KP: tl.constexpr, DP: tl.constexpr, RB: tl.constexpr,
):  # fmt: skip
    """What the moves add to each cluster's sum and size, (KP, DP)."""
    i = tl.arange(0, KP)[:, None]
    major = tl.zeros((KP, DP), dtype=tl.float32)
    minor = tl.zeros((KP, DP), dtype=tl.float32)
    for r0 in range(0, moved, RB):
        at = r0 + tl.arange(0, RB)
        change = tl.load(moves + at, mask=at < moved, other=0)  # from 0 to 0: nothing
        new, old = change & (OLD - 1), (change // OLD) & (OLD - 1)
        hi, lo = taken(x, LO, change // ROW, DP)
        member = (new[None, :] == i).to(tl.float16) - (old[None, :] == i).to(tl.float16)
        major = tl.dot(member, hi, major)
        minor = tl.dot(member, lo, minor)
    return major + minor * (1.0 / SPLIT)


@triton.jit
def prepare(
    x, LO, squares, states, todo, size, room, D: tl.constexpr, KP: tl.constexpr, DP: tl.constexpr,
    RB: tl.constexpr,
):  # fmt: skip
    """Half the squared norms of rows 0 … size−1, which have no label yet (KP) and are all to be looked at;
    rows up to room are none, and never will be.
    """
    used = tl.arange(0, DP)[None, :] < D
    for r0 in range(0, room, RB):
        rows = r0 + tl.arange(0, RB)
        ok = rows < size
        hi, lo = taken(x, LO, tl.where(ok, rows, 0), DP)  # nobody has written what is behind the last
        values = tl.where(used, joined(hi, lo), 0.0)
        tl.store(squares + rows, 0.5 * tl.sum(values * values, axis=1) + BIAS)
        tl.store(states + rows, tl.where(ok, KP, 0x7F000000))
        tl.store(todo + rows, rows)


@triton.jit
def doubtful(states, steps, todo, room, KP: tl.constexpr, CB: tl.constexpr):
    """Lists the rows whose slack is used up by the centres' steps; returns how many.

    A state is a slack in float32 with the label in its lowest bits, which moves it towards zero at most.
    steps[j] is what centre j's cluster loses: its own step and the longest of all.
    """
    count = tl.zeros((), dtype=tl.int32)
    for c0 in range(0, room, CB):
        rows = c0 + tl.arange(0, CB)
        state = tl.load(states + rows)
        label = state & (KP - 1)
        slack = as_float(state & (-2 * KP)) - tl.load(steps + label)
        tl.store(states + rows, (as_bits(slack) & (-2 * KP)) | label)
        count = listed(todo, rows, slack <= 0.0, count)
    return count


@triton.jit
def movers(todo, moves, count, CB: tl.constexpr):
    """Lists the moves among what reassign has left; returns how many."""
    moved = tl.zeros((), dtype=tl.int32)
    for c0 in range(0, count, CB):
        at = c0 + tl.arange(0, CB)
        change = tl.load(todo + at, mask=at < count, other=-1)
        moved = listed(moves, change, change >= 0, moved)
    return moved


@triton.jit
def new_centres(sums, centres, D: tl.constexpr, DP: tl.constexpr):
    """The clusters' means; an empty cluster keeps its centre."""
    sizes = tl.sum(tl.where(tl.arange(0, DP)[None, :] == D, sums, 0.0), axis=1)
    return tl.where((sizes > 0)[:, None], sums * (1.0 / tl.maximum(sizes, 1.0))[:, None], centres)


@triton.jit
def store_steps(steps, centres, fresh, D: tl.constexpr, KP: tl.constexpr, DP: tl.constexpr):
    """How far each centre has moved, plus the longest way; a little more, for rounding."""
    difference = tl.where(tl.arange(0, DP)[None, :] < D, fresh - centres, 0.0)
    step = tl.sqrt(tl.sum(difference * difference, axis=1)) * 1.0001 + 1e-7
    tl.store(steps + tl.arange(0, KP), step + tl.max(step, axis=0))


@triton.jit(do_not_specialize=["iterations", "limit"])
def small_rounds_kernel(
    x_all, states_all, squares_all, todo_all, moves_all, centres_all, sums_all, steps_all, n, padded_n,
    limit, iterations, K: tl.constexpr, D: tl.constexpr, KP: tl.constexpr, DP: tl.constexpr,
    RB: tl.constexpr, CB: tl.constexpr,
):  # fmt: skip
    """Lloyd's algorithm for image number program_id, on the centres in centres_all."""
    b = tl.program_id(0).to(tl.int64)
    LO = padded_n * DP
    x, at = x_all + b * 2 * LO, b * padded_n
    states, squares, todo, moves = states_all + at, squares_all + at, todo_all + at, moves_all + at
    steps = steps_all + b * KP
    place = tl.arange(0, KP)[:, None] * DP + tl.arange(0, DP)[None, :]
    memory, sums_memory = centres_all + b * KP * DP + place, sums_all + b * KP * DP + place
    prepare(x, LO, squares, states, todo, n, padded_n, D, KP, DP, RB)
    tl.store(sums_memory, tl.zeros((KP, DP), dtype=tl.float32))
    count, changed, done = n + 0, n + 1, 0
    while (done < iterations) & (changed > limit):
        tl.debug_barrier()  # what other threads have stored is loaded from here on
        reassign(x, LO, states, squares, todo, tl.load(memory), count, K, D, KP, DP, RB)
        tl.debug_barrier()
        moved = movers(todo, moves, count, CB)
        tl.debug_barrier()
        sums = tl.load(sums_memory) + flow(x, LO, moves, moved, KP, DP, RB)
        centres = tl.load(memory)
        fresh = new_centres(sums, centres, D, DP)
        tl.debug_barrier()
        tl.store(sums_memory, sums)
        tl.store(memory, fresh)
        store_steps(steps, centres, fresh, D, KP, DP)
        # The first round has no labels to compare with: it never ends the search.
        changed = tl.where(done == 0, n + 1, moved)
        done += 1
        tl.debug_barrier()
        count = doubtful(states, steps, todo, padded_n, KP, CB)


@triton.jit(do_not_specialize=["is_first"])
def strip_rounds_kernel(
    x_all, states_all, squares_all, todo_all, moves_all, centres_all, flows_all, steps_all, changed_all,
    active, n, padded_n, strips, is_first, K: tl.constexpr, D: tl.constexpr, KP: tl.constexpr,
    DP: tl.constexpr, RB: tl.constexpr, CB: tl.constexpr, STRIP: tl.constexpr,
):  # fmt: skip
    """One round of Lloyd's algorithm over a strip."""
    b = tl.program_id(1).to(tl.int64)
    if tl.load(active + b) != 0:
        strip = tl.program_id(0)
        LO = padded_n.to(tl.int64) * DP
        first = strip.to(tl.int64) * STRIP
        x, at = x_all + b * 2 * LO + first * DP, b * padded_n + first
        states, squares, todo, moves = states_all + at, squares_all + at, todo_all + at, moves_all + at
        size, room = tl.minimum(STRIP, n - strip * STRIP), tl.minimum(STRIP, padded_n - strip * STRIP)
        place = tl.arange(0, KP)[:, None] * DP + tl.arange(0, DP)[None, :]
        centres = tl.load(centres_all + b * KP * DP + place)
        count = size + 0
        if is_first != 0:
            prepare(x, LO, squares, states, todo, size, room, D, KP, DP, RB)
        else:
            count = doubtful(states, steps_all + b * KP, todo, room, KP, CB)
        tl.debug_barrier()
        reassign(x, LO, states, squares, todo, centres, count, K, D, KP, DP, RB)
        tl.debug_barrier()
        moved = movers(todo, moves, count, CB)
        tl.debug_barrier()
        change = flow(x, LO, moves, moved, KP, DP, RB)
        tl.store(flows_all + (b * strips + strip) * KP * DP + place, change)
        tl.store(changed_all + b * strips + strip, moved)


@triton.jit(do_not_specialize=["is_first", "limit"])
def strip_means_kernel(
    centres_all, sums_all, flows_all, steps_all, changed_all, active, strips, limit, is_first,
    D: tl.constexpr, KP: tl.constexpr, DP: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """The strips' changes added up in order: new sums and centres, and whether the image goes on.

    A GROUP of strips is loaded at once: one after the other would wait for memory as many times.
    """
    b = tl.program_id(0).to(tl.int64)
    if tl.load(active + b) != 0:
        place = tl.arange(0, KP)[:, None] * DP + tl.arange(0, DP)[None, :]
        sums = tl.load(sums_all + b * KP * DP + place)
        changed = tl.zeros((), dtype=tl.int32)
        group = tl.arange(0, GROUP)
        for first in range(0, strips, GROUP):
            at, ok = b * strips + first + group, first + group < strips
            flows = flows_all + at[:, None, None] * (KP * DP) + place[None, :, :]
            sums += tl.sum(tl.load(flows, mask=ok[:, None, None], other=0.0), axis=0)
            changed += tl.sum(tl.load(changed_all + at, mask=ok, other=0))
        centres = tl.load(centres_all + b * KP * DP + place)
        fresh = new_centres(sums, centres, D, DP)
        tl.store(sums_all + b * KP * DP + place, sums)
        tl.store(centres_all + b * KP * DP + place, fresh)
        store_steps(steps_all + b * KP, centres, fresh, D, KP, DP)
        if (is_first == 0) & (changed <= limit):
            tl.store(active + b, 0)


@triton.jit
def small_start_kernel(
    x_all, near_all, owners_all, gaps_all, todo_all, centres_all, streams, key, n, padded_n,
    K: tl.constexpr, KP: tl.constexpr, DP: tl.constexpr, NB: tl.constexpr, CB: tl.constexpr,
):  # fmt: skip
    """k-means++ for image number program_id, from memory."""
    b = tl.program_id(0).to(tl.int64)
    LO = padded_n.to(tl.int64) * DP
    x, at = x_all + b * 2 * LO, b * padded_n
    near, owners, todo, gaps = near_all + at, owners_all + at, todo_all + at, gaps_all + b * KP
    memory = centres_all + b * KP * DP
    stream = tl.load(streams + b)
    j = tl.arange(0, DP)
    centre = row_of(x, LO, (init_word(key, stream, 0) * n) >> 32, DP)
    tl.store(memory + j, centre)
    for number in range(1, K):
        total = approach(x, LO, near, owners, gaps, todo, centre, number, n, DP, CB, NB)
        word = init_word(key, stream, number)
        target = word.to(tl.float64) * WORD * total
        count, _ = count_up_to(near, 0, n, tl.zeros((), dtype=tl.float64), target, CB)
        index = tl.where(total > 0, tl.minimum(count, n - 1).to(tl.int64), (word * n) >> 32)
        centre = row_of(x, LO, index, DP)
        store_gaps(gaps, memory, centre, KP, DP)
        tl.debug_barrier()
        tl.store(memory + number * DP + j, centre)
        tl.debug_barrier()


@triton.jit
def resident_start_kernel(
    x_all, words_all, centres_all, streams, key, n, padded_n, K: tl.constexpr, KP: tl.constexpr,
    DP: tl.constexpr, RUN: tl.constexpr, RUNS: tl.constexpr,
):  # fmt: skip
    """k-means++ for image number program_id, whose patches stay in registers.

    A group of threads holds RUN patches that follow each other, so that running sums cross threads once a
    run. They are added up in float32 within a run and in float64 from run to run.
    """
    b = tl.program_id(0).to(tl.int64)
    LO = padded_n * DP
    x = x_all + b * 2 * LO
    memory = centres_all + b * KP * DP
    stream = tl.load(streams + b)
    j = tl.arange(0, DP)
    rows = tl.arange(0, RUNS)[:, None] * RUN + tl.arange(0, RUN)[None, :]
    ok = rows < n
    place = rows[:, :, None] * DP + j[None, None, :]
    hi = tl.load(x + place, mask=ok[:, :, None], other=0.0)
    lo = tl.load(x + LO + place, mask=ok[:, :, None], other=0.0)
    patches = joined(hi, lo)
    words = words_all + b * KP
    tl.store(words + tl.arange(0, KP), init_word(key, stream, tl.arange(0, KP)).to(tl.int32))
    near = tl.where(ok, float("inf"), 0.0)
    centre = row_of(x, LO, (init_word(key, stream, 0) * n) >> 32, DP)
    tl.store(memory + j, centre)
    tl.debug_barrier()
    for number in range(1, K):
        difference = patches - centre[None, None, :]
        near = tl.minimum(near, tl.sum(difference * difference, axis=2))
        within = tl.cumsum(near, axis=1)
        run = tl.max(within, axis=1).to(tl.float64)
        total = tl.sum(run)
        word = tl.load(words + number).to(tl.uint32, bitcast=True).to(tl.int64)
        target = word.to(tl.float64) * WORD * total
        left = (target - (tl.cumsum(run, axis=0) - run)).to(tl.float32)
        count = tl.sum(((within <= left[:, None]) & ok).to(tl.int32))
        index = tl.where(total > 0, tl.minimum(count, n - 1).to(tl.int64), (word * n) >> 32)
        centre = row_of(x, LO, index, DP)
        tl.store(memory + number * DP + j, centre)


@triton.jit(do_not_specialize=["number"])
def strip_near_kernel(
    x_all, near_all, owners_all, gaps_all, todo_all, partial, centres_all, number, n, padded_n, strips,
    KP: tl.constexpr, DP: tl.constexpr, NB: tl.constexpr, CB: tl.constexpr, STRIP: tl.constexpr,
):  # fmt: skip
    """Distances to centre number−1, where it is the nearest so far; the strip's sum of them."""
    b = tl.program_id(1).to(tl.int64)
    strip = tl.program_id(0)
    LO = padded_n.to(tl.int64) * DP
    first = strip.to(tl.int64) * STRIP
    at = b * padded_n + first
    centre = tl.load(centres_all + (b * KP + number - 1) * DP + tl.arange(0, DP))
    total = approach(
        x_all + b * 2 * LO + first * DP, LO, near_all + at, owners_all + at, gaps_all + b * KP,
        todo_all + at, centre, number, tl.minimum(STRIP, n - strip * STRIP), DP, CB, NB,
    )  # fmt: skip
    tl.store(partial + b * strips + strip, total)
