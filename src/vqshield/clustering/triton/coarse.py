"""Lloyd's rounds that read half of each patch: the other half only where it could matter.

A patch is hi + lo/2048 (parts.py). A round multiplies hi with the centres rounded to half precision. How far
that moves a patch and a centre is known: where the nearest centre leads by more, it is the nearest. Patches
where it does not, and those whose label is another than before, are listed in order and looked at in full; of
these, those that do change label move from one cluster's sum to another's.

No atomics: the same in every run.
"""

import triton
import triton.language as tl

from vqshield.clustering.triton.parts import SPLIT, labels_of, means, prepared
from vqshield.clustering.triton.selective import BIAS, DOUBT, as_bits, as_float, leader, listed, taken


@triton.jit
def measure(
    x, LO, squares, labels, todo, size, D: tl.constexpr, KP: tl.constexpr, DP: tl.constexpr, RB: tl.constexpr,
):  # fmt: skip
    """Half the squared norms of hi of rows 0 … size−1, which have no label yet (KP) and are all to be looked
    at; returns the largest norm of what hi leaves out.
    """
    used = tl.arange(0, DP)[None, :] < D
    most = tl.zeros((RB,), dtype=tl.float32)
    for r0 in range(0, size, RB):
        rows = r0 + tl.arange(0, RB)
        hi, lo = taken(x, LO, rows, DP)
        values = tl.where(used, hi.to(tl.float32), 0.0)
        left = lo.to(tl.float32)
        tl.store(squares + rows, 0.5 * tl.sum(values * values, axis=1) + BIAS)
        tl.store(labels + rows, tl.full((RB,), KP, dtype=tl.int32))
        tl.store(todo + rows, rows)
        most = tl.maximum(most, tl.sum(left * left, axis=1))
    return tl.sqrt(tl.max(most, axis=0)) * (1.0001 / SPLIT)


@triton.jit
def rounded(centres, left_out, K: tl.constexpr, D: tl.constexpr, KP: tl.constexpr, DP: tl.constexpr):
    """Minus the centres in half precision (DP, KP), half the squared norms of that, and what both roundings
    can take from a lead: from the leader's distance, and from the second's.
    """
    used = tl.where(tl.arange(0, DP)[None, :] < D, centres, 0.0)
    operand = (-used).to(tl.float16)
    values = operand.to(tl.float32)
    norms = tl.where(tl.arange(0, KP) < K, 0.5 * tl.sum(values * values, axis=1), 1e30)
    rest = used + values
    reach = 2.0001 * (left_out + tl.sqrt(tl.max(tl.sum(rest * rest, axis=1), axis=0)))
    return tl.trans(operand), norms, reach


@triton.jit
def judge(hi, rows, size, squares, labels, marks, operand, norms, reach, KP: tl.constexpr, SB: tl.constexpr):
    """In marks the number of each row whose label may be another now, −1 for the others."""
    square = tl.load(squares + rows)
    before = tl.load(labels + rows)
    score = tl.dot(hi, operand, norms[None, :] + square[:, None])
    # Half the squared distance, and in its lowest bits which centre: one minimum finds both.
    packed = (as_bits(score) & -KP) | tl.arange(0, KP)[None, :]
    best, second = tl.reduce((packed, tl.full((SB, KP), 0x7FFFFFFF, dtype=tl.int32)), 1, leader)
    first = as_float(best) * (1.0 + KP * 1.2e-7) + DOUBT * (1.0 + square)
    other = as_float(second) * (1.0 - KP * 1.2e-7) - DOUBT * (1.0 + square)
    # √(2·other) > √(2·first) + reach, squared and halved.
    certain = other > first + reach * tl.sqrt(2.0 * first) + 0.5 * reach * reach
    keep = (((best & (KP - 1)) != before) | (certain == 0)) & (rows < size)
    tl.store(marks + rows, tl.where(keep, rows, -1))


@triton.jit
def survey(
    x, squares, labels, marks, centres, left_out, size, K: tl.constexpr, D: tl.constexpr, KP: tl.constexpr,
    DP: tl.constexpr, SB: tl.constexpr,
):  # fmt: skip
    """Judges rows 0 … size−1."""
    operand, norms, reach = rounded(centres, left_out, K, D, KP, DP)
    for r0 in range(0, size, SB):
        rows = r0 + tl.arange(0, SB)
        hi = tl.load(x + rows[:, None] * DP + tl.arange(0, DP)[None, :])
        judge(hi, rows, size, squares, labels, marks, operand, norms, reach, KP, SB)


@triton.jit
def marked(marks, todo, size, CB: tl.constexpr):
    """Lists the marked rows among 0 … size−1; returns how many."""
    count = tl.zeros((), dtype=tl.int32)
    for c0 in range(0, size, CB):
        rows = c0 + tl.arange(0, CB)
        mark = tl.load(marks + rows, mask=rows < size, other=-1)
        count = listed(todo, mark, mark >= 0, count)
    return count


@triton.jit
def settle(
    x, LO, labels, todo, centres, count, K: tl.constexpr, D: tl.constexpr, KP: tl.constexpr,
    DP: tl.constexpr, RB: tl.constexpr,
):  # fmt: skip
    """New labels of the listed rows; what that adds to each cluster's sum and size, and how many moved."""
    centres_hi, centres_lo, norms = prepared(centres, K, D, KP, DP)
    i = tl.arange(0, KP)[:, None]
    change = tl.zeros((KP, DP), dtype=tl.float32)
    moved = tl.zeros((RB,), dtype=tl.int32)
    for r0 in range(0, count, RB):
        at = r0 + tl.arange(0, RB)
        ok = at < count
        rows = tl.load(todo + at, mask=ok, other=0)
        hi, lo = taken(x, LO, rows, DP)
        before = tl.load(labels + rows)
        label = tl.where(ok, labels_of(hi, lo, centres_hi, centres_lo, norms), before)
        tl.store(labels + rows, label, mask=ok)
        moved += (label != before).to(tl.int32)
        member = (label[None, :] == i).to(tl.float16) - (before[None, :] == i).to(tl.float16)
        change = tl.dot(member, hi, change)
        change = tl.dot(member * (1.0 / SPLIT), lo, change)
    return change, tl.sum(moved)


@triton.jit(do_not_specialize=["iterations", "limit"])
def small_rounds_kernel(
    x_all, labels_all, squares_all, todo_all, marks_all, centres_all, sums_all, n, padded_n, limit,
    iterations, K: tl.constexpr, D: tl.constexpr, KP: tl.constexpr, DP: tl.constexpr, RB: tl.constexpr,
    SB: tl.constexpr, CB: tl.constexpr, RESIDENT: tl.constexpr,
):  # fmt: skip
    """Lloyd's algorithm for image number program_id, on the centres in centres_all."""
    b = tl.program_id(0).to(tl.int64)
    LO = padded_n * DP
    x, at = x_all + b * 2 * LO, b * padded_n
    labels, squares, todo, marks = labels_all + at, squares_all + at, todo_all + at, marks_all + at
    place = tl.arange(0, KP)[:, None] * DP + tl.arange(0, DP)[None, :]
    memory = centres_all + b * KP * DP + place
    sums_memory = sums_all + b * KP * DP + place
    left_out = measure(x, LO, squares, labels, todo, padded_n, D, KP, DP, RB)
    tl.store(sums_memory, tl.zeros((KP, DP), dtype=tl.float32))
    if RESIDENT:  # all of hi stays on the chip, in four parts
        rows = tl.arange(0, SB)
        hi = x + rows[:, None] * DP + tl.arange(0, DP)[None, :]
        hi0, hi1 = tl.load(hi), tl.load(hi + SB * DP)
        hi2, hi3 = tl.load(hi + 2 * SB * DP), tl.load(hi + 3 * SB * DP)
    count, goes_on, done = n + 0, iterations > 0, 0
    while goes_on:
        tl.debug_barrier()  # what other threads have stored is loaded from here on
        change, moved = settle(x, LO, labels, todo, tl.load(memory), count, K, D, KP, DP, RB)
        sums = tl.load(sums_memory) + change
        centres = means(sums, tl.load(memory), D, DP)
        tl.debug_barrier()
        tl.store(sums_memory, sums)  # in memory, as registers are few
        tl.store(memory, centres)
        done += 1
        # The first round has no labels to compare with: it never ends the search.
        goes_on = (done < iterations) & ((done == 1) | (moved > limit))
        if goes_on:
            tl.debug_barrier()
            if RESIDENT:
                operand, norms, reach = rounded(centres, left_out, K, D, KP, DP)
                judge(hi0, rows, n, squares, labels, marks, operand, norms, reach, KP, SB)
                judge(hi1, rows + SB, n, squares, labels, marks, operand, norms, reach, KP, SB)
                judge(hi2, rows + 2 * SB, n, squares, labels, marks, operand, norms, reach, KP, SB)
                judge(hi3, rows + 3 * SB, n, squares, labels, marks, operand, norms, reach, KP, SB)
            else:
                survey(x, squares, labels, marks, centres, left_out, n, K, D, KP, DP, SB)
            tl.debug_barrier()
            count = marked(marks, todo, n, CB)


@triton.jit(do_not_specialize=["is_first"])
def strip_rounds_kernel(
    x_all, labels_all, squares_all, todo_all, marks_all, centres_all, flows_all, left_all, changed_all,
    active, n, padded_n, strips, is_first, K: tl.constexpr, D: tl.constexpr, KP: tl.constexpr,
    DP: tl.constexpr, RB: tl.constexpr, SB: tl.constexpr, CB: tl.constexpr, STRIP: tl.constexpr,
):  # fmt: skip
    """One round of Lloyd's algorithm over a strip."""
    b = tl.program_id(1).to(tl.int64)
    if tl.load(active + b) != 0:
        strip = tl.program_id(0)
        LO = padded_n.to(tl.int64) * DP
        first = strip.to(tl.int64) * STRIP
        x, at = x_all + b * 2 * LO + first * DP, b * padded_n + first
        labels, squares, todo, marks = labels_all + at, squares_all + at, todo_all + at, marks_all + at
        size, room = tl.minimum(STRIP, n - strip * STRIP), tl.minimum(STRIP, padded_n - strip * STRIP)
        place = tl.arange(0, KP)[:, None] * DP + tl.arange(0, DP)[None, :]
        centres = tl.load(centres_all + b * KP * DP + place)
        count = size + 0
        if is_first != 0:
            tl.store(
                left_all + b * strips + strip, measure(x, LO, squares, labels, todo, room, D, KP, DP, RB)
            )
        else:
            left_out = tl.load(left_all + b * strips + strip)
            survey(x, squares, labels, marks, centres, left_out, size, K, D, KP, DP, SB)
            tl.debug_barrier()
            count = marked(marks, todo, size, CB)
        tl.debug_barrier()
        change, moved = settle(x, LO, labels, todo, centres, count, K, D, KP, DP, RB)
        tl.store(flows_all + (b * strips + strip) * KP * DP + place, change)
        tl.store(changed_all + b * strips + strip, moved)
