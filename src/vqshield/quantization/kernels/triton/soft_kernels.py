"""The Triton kernels of soft.py: the gradient of soft assignment, forward and backward.

A program works on patches of one image, (KP, RB) and (DP, RB) values at once: K centres and D components,
raised to powers of two, of RB patches, which lie along the lanes as neighbouring pixels do. What is kept of
all patches is kept by component, (D, n). Patches and centres are less the mean colour of the centres, the
origin.
"""

import triton
import triton.language as tl

from vqshield.quantization.kernels.triton.parts import box_muller, corner, pixel, random_words


@triton.jit
def prepare_kernel(
    centres_all, origin_all, book_all, CHANNELS: tl.constexpr, SS: tl.constexpr, K: tl.constexpr,
    D: tl.constexpr, KP: tl.constexpr, DP: tl.constexpr,
):  # fmt: skip
    """An image's mean colour, and its centres less that."""
    b = tl.program_id(0).to(tl.int64)
    i, j = tl.arange(0, KP)[:, None], tl.arange(0, DP)[None, :]
    used = (i < K) & (j < D)
    centres = tl.load(centres_all + b * K * D + i * D + j, mask=used, other=0.0)
    colours = tl.sum(centres, axis=0)
    components = tl.arange(0, DP)
    origin = tl.zeros((DP,), dtype=tl.float32)
    for channel in tl.static_range(CHANNELS):
        mine = components // SS == channel
        mean = tl.sum(tl.where(mine, colours, 0.0), axis=0) / (K * SS)
        origin = tl.where(mine, tl.floor(mean * 256.0) / 256.0, origin)  # few bits: subtractions lose none
    tl.store(origin_all + b * DP + components, origin)
    tl.store(book_all + b * KP * DP + i * DP + j, tl.where(used, centres - origin[None, :], 0.0))


@triton.jit
def noise_kernel(
    noise_all, streams, key, n, total, tau, STAGE: tl.constexpr, D: tl.constexpr, QB: tl.constexpr
):
    """Value i·D + c of the stage's noise, times tau, at place (c, i)."""
    b = tl.program_id(1).to(tl.int64)
    q0 = tl.program_id(0) * QB
    a, b_, c_, d = random_words(key, tl.load(streams + b), STAGE, q0 + tl.arange(0, QB))
    z0, z1 = box_muller(a, b_)
    z2, z3 = box_muller(c_, d)
    values = tl.interleave(tl.interleave(z0, z2), tl.interleave(z1, z3)) * tau
    e = q0.to(tl.int64) * 4 + tl.arange(0, 4 * QB)
    i = e // D
    plane = tl.full((), 0, dtype=tl.int64) + n
    tl.store(noise_all + b * D * plane + (e - i * D) * plane + i, values, mask=e < total)


@triton.jit
def distances(
    image, noise, columns_memory, origin, rows, ok, plane, columns, H, W, S: tl.constexpr,
    SLIDING: tl.constexpr, DRAWN: tl.constexpr, K: tl.constexpr, D: tl.constexpr, KP: tl.constexpr,
    RB: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    """Squared distances of all centres from patches, (KP, RB); infinite beyond K."""
    row, column = corner(rows, columns, S, SLIDING)
    corners = image + row * W + column
    i = tl.arange(0, KP)
    total = tl.zeros((KP, RB), dtype=tl.float32)
    for c in tl.range(0, D, loop_unroll_factor=UNROLL):
        place = (c // (S * S) * H + c // S % S) * W + c % S
        value = tl.load(corners + place, mask=ok, other=0.0) - tl.load(origin + c)
        if DRAWN:
            value += tl.load(noise + c * plane + rows, mask=ok, other=0.0)
        difference = tl.load(columns_memory + c * KP + i)[:, None] - value[None, :]
        total += difference * difference
    return tl.where(i[:, None] < K, total, float("inf"))


@triton.jit
def softened(distance, colder):
    """Distances as the weights of a softmax over the centres."""
    weights = tl.exp((tl.min(distance, axis=0)[None, :] - distance) * colder)
    return weights * (1.0 / tl.sum(weights, axis=0))[None, :]


@triton.jit
def patches_of(
    image, noise, origin, rows, used, plane, columns, H, W, S: tl.constexpr, SLIDING: tl.constexpr,
    DRAWN: tl.constexpr, DP: tl.constexpr,
):  # fmt: skip
    """Patches less the mean colour, (DP, RB); zero where they are not used."""
    j = tl.arange(0, DP)
    values = pixel(image, rows[None, :], j[:, None], columns, H, W, used, S, SLIDING)
    values = tl.where(used, values - tl.load(origin + j)[:, None], 0.0)
    if DRAWN:
        values += tl.load(noise + j[:, None] * plane + rows[None, :], mask=used, other=0.0)
    return values


@triton.jit
def pixel_place(index, component, columns, H, W, S: tl.constexpr):
    """Where in an image a component of a patch lies, of patches side by side."""
    row, column = corner(index, columns, S, False)
    return (component // (S * S) * H + row + component // S % S) * W + column + component % S


@triton.jit
def mix_kernel(
    images, assigned, noise_all, origin_all, columns_all, mixed_all, similarity_all, n, columns, H, W, colder,
    beta, CHANNELS: tl.constexpr, S: tl.constexpr, DRAWN: tl.constexpr, NOISY: tl.constexpr,
    K: tl.constexpr, D: tl.constexpr, KP: tl.constexpr, DP: tl.constexpr, RB: tl.constexpr,
    UNROLL: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """What windows are mixed to, and −beta times their squared distance from it."""
    b = tl.program_id(1).to(tl.int64)
    plane = tl.full((), 0, dtype=tl.int64) + n
    noise, columns_memory = noise_all + b * D * plane, columns_all + b * KP * DP
    origin, seen = origin_all + b * DP, assigned + b * CHANNELS * H * W
    rows = tl.program_id(0) * RB + tl.arange(0, RB)
    i, j = tl.arange(0, KP), tl.arange(0, DP)
    ok = rows < n
    used = (j < D)[:, None] & ok[None, :]
    distance = distances(
        seen, noise, columns_memory, origin, rows, ok, plane, columns, H, W, S, True, DRAWN, K, D, KP,
        RB, UNROLL,
    )  # fmt: skip
    across = tl.load(columns_memory + j[:, None] * KP + i[None, :])
    mixed = tl.dot(across, softened(distance, colder), input_precision=PRECISION)
    tl.store(mixed_all + (b * D + j[:, None]) * plane + rows[None, :], mixed, mask=used)
    if NOISY:
        windows = patches_of(seen, noise, origin, rows, used, plane, columns, H, W, S, True, DRAWN, DP)
    else:
        clean = images + b * CHANNELS * H * W
        windows = patches_of(clean, noise, origin, rows, used, plane, columns, H, W, S, True, False, DP)
    difference = tl.where(used, mixed - windows, 0.0)
    tl.store(similarity_all + b * n + rows, -beta * tl.sum(difference * difference, axis=0), mask=ok)


@triton.jit
def blend_kernel(
    mixed_all, similarity_all, blended_all, largest_all, scale_all, n, window_rows, columns, H, W,
    CHANNELS: tl.constexpr, CP: tl.constexpr, S: tl.constexpr, D: tl.constexpr, PB: tl.constexpr,
):  # fmt: skip
    """Pixels as the weighted mean of the windows that cover them, and what makes a weight of a similarity."""
    b = tl.program_id(1).to(tl.int64)
    plane = tl.full((), 0, dtype=tl.int64) + n
    mixed, similarity = mixed_all + b * D * plane, similarity_all + b * n
    p = tl.program_id(0) * PB + tl.arange(0, PB)
    ok = p < H * W
    y = p // W
    x = p - y * W
    channel = tl.arange(0, CP)[None, :]
    largest = tl.full((PB,), float("-inf"), dtype=tl.float32)
    for o in tl.static_range(S * S):
        wy, wx = y - o // S, x - o % S
        here = ok & (wy >= 0) & (wy < window_rows) & (wx >= 0) & (wx < columns)
        one = tl.load(similarity + wy * columns + wx, mask=here, other=float("-inf"))
        largest = tl.maximum(largest, one)
    largest = tl.where(ok, largest, 0.0)
    total = tl.zeros((PB, CP), dtype=tl.float32)
    weights = tl.zeros((PB,), dtype=tl.float32)
    for o in tl.static_range(S * S):
        wy, wx = y - o // S, x - o % S
        here = ok & (wy >= 0) & (wy < window_rows) & (wx >= 0) & (wx < columns)
        window = wy * columns + wx
        weight = tl.exp(tl.load(similarity + window, mask=here, other=float("-inf")) - largest)
        place = mixed + (channel * (S * S) + o) * plane + window[:, None]
        total += tl.load(place, mask=here[:, None] & (channel < CHANNELS), other=0.0) * weight[:, None]
        weights += weight
    scale = 1.0 / tl.where(ok, weights, 1.0)
    tl.store(largest_all + b * H * W + p, largest, mask=ok)
    tl.store(scale_all + b * H * W + p, scale, mask=ok)
    target = blended_all + (b * CHANNELS + channel) * H * W + p[:, None]
    tl.store(target, total * scale[:, None], mask=ok[:, None] & (channel < CHANNELS))


@triton.jit
def pull_kernel(
    images, assigned, slopes_all, noise_all, origin_all, book_all, columns_all, mixed_all, similarity_all,
    blended_all, largest_all, scale_all, labels_all, partial_all, output, n, strips, columns, H, W, colder,
    beta, CHANNELS: tl.constexpr, S: tl.constexpr, SLIDING: tl.constexpr, APART: tl.constexpr,
    DRAWN: tl.constexpr, NOISY: tl.constexpr, MEANS: tl.constexpr, MOVING: tl.constexpr, K: tl.constexpr,
    D: tl.constexpr, KP: tl.constexpr, DP: tl.constexpr, RB: tl.constexpr, STRIP: tl.constexpr,
    UNROLL: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Changes of a strip's patches: windows' in place of what they are mixed to, others' as pixels."""
    b = tl.program_id(1).to(tl.int64)
    strip = tl.program_id(0)
    plane = tl.full((), 0, dtype=tl.int64) + n
    clean, seen = images + b * CHANNELS * H * W, assigned + b * CHANNELS * H * W
    slopes_image = slopes_all + b * CHANNELS * H * W
    noise, columns_memory = noise_all + b * D * plane, columns_all + b * KP * DP
    origin, labels = origin_all + b * DP, labels_all + b * n
    i, j = tl.arange(0, KP), tl.arange(0, DP)
    component = j[:, None]
    place = i[:, None] * DP + j[None, :]
    sums = tl.zeros((KP, DP), dtype=tl.float32)
    totals = tl.zeros((KP,), dtype=tl.float32)
    sizes = tl.zeros((KP,), dtype=tl.float32)
    for r0 in range(strip * STRIP, tl.minimum(strip * STRIP + STRIP, n), RB):
        rows = r0 + tl.arange(0, RB)
        ok = rows < n
        index = rows[None, :]
        used = (component < D) & ok[None, :]
        distance = distances(
            seen, noise, columns_memory, origin, rows, ok, plane, columns, H, W, S, SLIDING, DRAWN, K,
            D, KP, RB, UNROLL,
        )  # fmt: skip
        weights = softened(distance, colder)
        if MEANS:
            if APART:
                distance = distances(
                    clean, noise, columns_memory, origin, rows, ok, plane, columns, H, W, S, SLIDING, False,
                    K, D, KP, RB, UNROLL,
                )  # fmt: skip
            label = tl.argmin(distance, axis=0)
            tl.store(labels + rows, label, mask=ok)
            sizes += tl.sum(((i[:, None] == label[None, :]) & ok[None, :]).to(tl.float32), axis=1)
        across = tl.load(columns_memory + component * KP + i[None, :])
        given = pixel(slopes_image, index, component, columns, H, W, used, S, SLIDING)
        if SLIDING:
            mixed_memory = mixed_all + (b * D + component) * plane + index
            mixed = tl.load(mixed_memory, mask=used, other=0.0)
            whole = blended_all + b * CHANNELS * H * W
            blended = pixel(whole, index, component, columns, H, W, used, S, True)
            offset = component % (S * S)  # the same for all channels
            largest = pixel(largest_all + b * H * W, index, offset, columns, H, W, used, S, True)
            scale = pixel(scale_all + b * H * W, index, offset, columns, H, W, used, S, True)
            similarity = tl.load(similarity_all + b * n + rows, mask=ok, other=0.0)
            given *= tl.where(used, tl.exp(similarity[None, :] - largest) * scale, 0.0)
            # Through the similarity, which decides a window's share of its pixels.
            steep = 2.0 * beta * tl.sum(given * (mixed - blended), axis=0)
            if NOISY:
                windows = patches_of(
                    seen, noise, origin, rows, used, plane, columns, H, W, S, True, DRAWN, DP
                )
            else:
                windows = patches_of(
                    clean, noise, origin, rows, used, plane, columns, H, W, S, True, False, DP
                )
            fit = steep[None, :] * tl.where(used, mixed - windows, 0.0)
            slopes = given - fit
        else:
            mixed = tl.dot(across, weights, input_precision=PRECISION)
            slopes = given
        book = tl.load(book_all + b * KP * DP + place)
        pulls = tl.dot(book, slopes, input_precision=PRECISION) - tl.sum(slopes * mixed, axis=0)[None, :]
        pulls = pulls * weights * (2.0 * colder)
        # Pulls add up to zero but for rounding, which the centres would magnify.
        changes = tl.dot(across, pulls, input_precision=PRECISION) - tl.sum(pulls, axis=0)[None, :] * mixed
        if MOVING:
            patches = patches_of(seen, noise, origin, rows, used, plane, columns, H, W, S, SLIDING, DRAWN, DP)
            sums = tl.dot(weights, tl.trans(slopes), sums, input_precision=PRECISION)
            sums = tl.dot(pulls, tl.trans(patches), sums, input_precision=PRECISION)
            totals += tl.sum(pulls, axis=1)  # zero where there is no patch, as its slopes are
        if SLIDING:
            tl.debug_barrier()  # all threads have what these windows were mixed to
            tl.store(mixed_memory, changes + fit, mask=used)
        else:
            at = pixel_place(index, component, columns, H, W, S)
            tl.store(output + b * CHANNELS * H * W + at, changes, mask=used)
    if MOVING:
        book = tl.load(book_all + b * KP * DP + place)
        sums = tl.where(j[None, :] == D, sizes[:, None], sums - totals[:, None] * book)
        tl.store(partial_all + (b * strips + strip) * KP * DP + place, sums)


@triton.jit
def move_kernel(partial_all, moves_all, strips, D: tl.constexpr, KP: tl.constexpr, DP: tl.constexpr):
    """The strips' sums added up in order: each centre's gradient for every patch that it is the mean of."""
    b = tl.program_id(0).to(tl.int64)
    j = tl.arange(0, DP)[None, :]
    place = tl.arange(0, KP)[:, None] * DP + j
    sums = tl.zeros((KP, DP), dtype=tl.float32)
    for strip in range(strips):
        sums += tl.load(partial_all + (b * strips + strip) * KP * DP + place)
    sizes = tl.sum(tl.where(j == D, sums, 0.0), axis=1)[:, None]
    tl.store(moves_all + b * KP * DP + place, sums / tl.maximum(sizes, 1.0))


@triton.jit
def gather_kernel(
    changes_all, labels_all, moves_all, output, n, window_rows, columns, H, W, CHANNELS: tl.constexpr,
    CP: tl.constexpr, S: tl.constexpr, SLIDING: tl.constexpr, MEANS: tl.constexpr, D: tl.constexpr,
    KP: tl.constexpr, DP: tl.constexpr, PB: tl.constexpr,
):  # fmt: skip
    """Pixels from the changes of the patches that they are in, and from those patches' centres."""
    b = tl.program_id(1).to(tl.int64)
    plane = tl.full((), 0, dtype=tl.int64) + n
    changes, labels, moves = changes_all + b * D * plane, labels_all + b * n, moves_all + b * KP * DP
    p = tl.program_id(0) * PB + tl.arange(0, PB)
    ok = p < H * W
    y = p // W
    x = p - y * W
    channel = tl.arange(0, CP)[None, :]
    there = channel < CHANNELS
    target = output + (b * CHANNELS + channel) * H * W + p[:, None]
    if SLIDING:
        total = tl.zeros((PB, CP), dtype=tl.float32)
        for o in tl.static_range(S * S):
            wy, wx = y - o // S, x - o % S
            here = ok & (wy >= 0) & (wy < window_rows) & (wx >= 0) & (wx < columns)
            window = wy * columns + wx
            component = channel * (S * S) + o
            total += tl.load(
                changes + component * plane + window[:, None], mask=here[:, None] & there, other=0.0
            )
            if MEANS:
                label = tl.load(labels + window, mask=here, other=0)
                total += tl.load(
                    moves + label[:, None] * DP + component, mask=here[:, None] & there, other=0.0
                )
    else:
        label = tl.load(labels + (y // S) * columns + x // S, mask=ok, other=0)
        component = channel * (S * S) + ((y % S) * S + x % S)[:, None]
        total = tl.load(target, mask=ok[:, None] & there, other=0.0)
        total += tl.load(moves + label[:, None] * DP + component, mask=ok[:, None] & there, other=0.0)
    tl.store(target, total, mask=ok[:, None] & there)


@triton.jit
def round_kernel(
    images, origin_all, columns_all, partial_all, n, strips, columns, H, W, colder, CHANNELS: tl.constexpr,
    S: tl.constexpr, SLIDING: tl.constexpr, K: tl.constexpr, D: tl.constexpr, KP: tl.constexpr,
    DP: tl.constexpr, RB: tl.constexpr, STRIP: tl.constexpr, UNROLL: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One round of soft k-means over a strip: the weighted sums of its patches, and behind them of ones."""
    b = tl.program_id(1).to(tl.int64)
    strip = tl.program_id(0)
    plane = tl.full((), 0, dtype=tl.int64) + n
    image, origin = images + b * CHANNELS * H * W, origin_all + b * DP
    columns_memory = columns_all + b * KP * DP
    i, j = tl.arange(0, KP), tl.arange(0, DP)
    sums = tl.zeros((KP, DP), dtype=tl.float32)
    for r0 in range(strip * STRIP, tl.minimum(strip * STRIP + STRIP, n), RB):
        rows = r0 + tl.arange(0, RB)
        ok = rows < n
        used = (j < D)[:, None] & ok[None, :]
        distance = distances(
            image, image, columns_memory, origin, rows, ok, plane, columns, H, W, S, SLIDING, False, K, D, KP,
            RB, UNROLL,
        )  # fmt: skip
        patches = patches_of(image, image, origin, rows, used, plane, columns, H, W, S, SLIDING, False, DP)
        patches = tl.where((j == D)[:, None] & ok[None, :], 1.0, patches)
        sums = tl.dot(softened(distance, colder), tl.trans(patches), sums, input_precision=PRECISION)
    place = i[:, None] * DP + j[None, :]
    tl.store(partial_all + (b * strips + strip) * KP * DP + place, sums)


@triton.jit
def centres_kernel(
    partial_all, book_all, columns_all, sizes_all, strips, D: tl.constexpr, KP: tl.constexpr, DP: tl.constexpr
):
    """The strips' sums added up in order: the centres after a round, and how much weight each has."""
    b = tl.program_id(0).to(tl.int64)
    i, j = tl.arange(0, KP), tl.arange(0, DP)
    place = i[:, None] * DP + j[None, :]
    sums = tl.zeros((KP, DP), dtype=tl.float32)
    for strip in range(strips):
        sums += tl.load(partial_all + (b * strips + strip) * KP * DP + place)
    sizes = tl.maximum(tl.sum(tl.where((j == D)[None, :], sums, 0.0), axis=1), 1.1754944e-38)
    book = tl.where((j < D)[None, :], sums / sizes[:, None], 0.0)
    tl.store(book_all + b * KP * DP + place, book)
    tl.store(columns_all + b * KP * DP + j[None, :] * KP + i[:, None], book)
    tl.store(sizes_all + b * KP + i, sizes)


@triton.jit
def turn_kernel(
    partial_all, book_all, sizes_all, share_all, across_all, level_all, strips, D: tl.constexpr,
    KP: tl.constexpr, DP: tl.constexpr,
):  # fmt: skip
    """From the gradient of a round's centres that of its sums, by centre and by component, and sizes."""
    b = tl.program_id(0).to(tl.int64)
    i, j = tl.arange(0, KP), tl.arange(0, DP)
    place = i[:, None] * DP + j[None, :]
    sums = tl.zeros((KP, DP), dtype=tl.float32)
    for strip in range(strips):
        sums += tl.load(partial_all + (b * strips + strip) * KP * DP + place)
    share = tl.where((j < D)[None, :], sums, 0.0) / tl.load(sizes_all + b * KP + i)[:, None]
    tl.store(share_all + b * KP * DP + place, share)
    tl.store(across_all + b * KP * DP + j[None, :] * KP + i[:, None], share)
    tl.store(level_all + b * KP + i, tl.sum(share * tl.load(book_all + b * KP * DP + place), axis=1))


@triton.jit
def unroll_kernel(
    images, origin_all, book_all, columns_all, share_all, across_all, level_all, changes_all, partial_all,
    output, n, strips, columns, H, W, colder, CHANNELS: tl.constexpr, S: tl.constexpr, SLIDING: tl.constexpr,
    K: tl.constexpr, D: tl.constexpr, KP: tl.constexpr, DP: tl.constexpr, RB: tl.constexpr,
    STRIP: tl.constexpr, UNROLL: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Backward through a round: more changes of a strip's patches, and the gradient of the centres before."""
    b = tl.program_id(1).to(tl.int64)
    strip = tl.program_id(0)
    plane = tl.full((), 0, dtype=tl.int64) + n
    image, origin = images + b * CHANNELS * H * W, origin_all + b * DP
    columns_memory = columns_all + b * KP * DP
    i, j = tl.arange(0, KP), tl.arange(0, DP)
    component = j[:, None]
    place, turned = i[:, None] * DP + j[None, :], component * KP + i[None, :]
    level = tl.load(level_all + b * KP + i)[:, None]
    sums = tl.zeros((KP, DP), dtype=tl.float32)
    totals = tl.zeros((KP,), dtype=tl.float32)
    for r0 in range(strip * STRIP, tl.minimum(strip * STRIP + STRIP, n), RB):
        rows = r0 + tl.arange(0, RB)
        ok = rows < n
        used = (component < D) & ok[None, :]
        distance = distances(
            image, image, columns_memory, origin, rows, ok, plane, columns, H, W, S, SLIDING, False, K, D, KP,
            RB, UNROLL,
        )  # fmt: skip
        weights = softened(distance, colder)
        patches = patches_of(image, image, origin, rows, used, plane, columns, H, W, S, SLIDING, False, DP)
        share = tl.load(share_all + b * KP * DP + place)
        pulls = tl.dot(share, patches, input_precision=PRECISION) - level
        pulls = (pulls - tl.sum(weights * pulls, axis=0)[None, :]) * weights * (2.0 * colder)
        pulls = tl.where(ok[None, :], pulls, 0.0)
        changes = tl.dot(tl.load(across_all + b * KP * DP + turned), weights, input_precision=PRECISION)
        changes = tl.dot(tl.load(columns_memory + turned), pulls, changes, input_precision=PRECISION)
        changes -= tl.sum(pulls, axis=0)[None, :] * patches  # nothing but rounding
        sums = tl.dot(pulls, tl.trans(patches), sums, input_precision=PRECISION)
        totals += tl.sum(pulls, axis=1)
        if SLIDING:
            target = changes_all + (b * D + component) * plane + rows[None, :]
        else:
            target = output + b * CHANNELS * H * W + pixel_place(rows[None, :], component, columns, H, W, S)
        tl.store(target, tl.load(target, mask=used, other=0.0) + changes, mask=used)
    sums -= totals[:, None] * tl.load(book_all + b * KP * DP + place)
    tl.store(partial_all + (b * strips + strip) * KP * DP + place, sums)
