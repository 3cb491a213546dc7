"""The gradient of soft assignment on a GPU: of sum_j softmax_j(−‖p − c_j‖²/T)·c_j in place of every patch p.

The same sums as native/soft.hpp, in float32, and no atomics: what overlapping windows owe a pixel is gathered
by that pixel, and what patches owe a centre is added up in strips whose length the image's shape alone
decides. So an image has the same gradient, bit for bit, in every run and in every batch.

prepare    centres less their mean colour: differences of small numbers lose fewer bits
noise      omega of every patch, where the assignment sees one
mix        sliding windows only: what each is replaced by, and how like it that is
blend      sliding windows only: each pixel from the windows that cover it
pull       backward through the softmax, and each strip's share of the centres' gradients
move       the centres' gradients, where centres move as means do
gather     pixels from the changes of their patches

Distances are sums of squared differences, never ‖p‖² − 2·p·c + ‖c‖²: a temperature of 0.03 would magnify what
that loses. They are computed twice, in mix and in pull, which is cheaper than keeping the weights (n, k).
What is kept of a window are d values (what it is mixed to, then its changes), d more where noise is drawn,
for as many images at once as recipe.memory holds.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from vqshield.clustering.base import Recipe, check_centres, check_images
from vqshield.clustering.triton import workspace
from vqshield.clustering.triton.launch import compiled
from vqshield.clustering.triton.noise import box_muller, random_words
from vqshield.clustering.triton.parts import corner, pixel
from vqshield.clustering.triton.workspace import power_of_two
from vqshield.errors import InvalidInputError
from vqshield.noise import Draw, Stage
from vqshield.patches import Sliding

MOST_VALUES = 2**14
"""Of a codebook, its codes and dimensions raised to powers of two: a program holds them all."""

_COUNTERS = 256  # blocks of four random words that one program of the noise kernel draws
_SHORT, _LONG = 256, 1024  # patches of a strip, in images of at most 4,096 patches and in larger ones


@dataclass(frozen=True)
class Tuning:
    """How the kernels are compiled.

    precision: of matrix products, "tf32x3" (three on the matrix units, nearly float32) or "ieee".
    unroll: how many components of a patch are loaded at once for its distances.
    mix_rows, pull_rows, pixels: patches and pixels at once; mix_warps, pull_warps: of a program.
    registers: the most that a thread of the pull kernel has, for more programs at once; 0: any number.
    """

    precision: str = "tf32x3"
    unroll: int = 3
    mix_rows: int = 128
    pull_rows: int = 32
    mix_warps: int = 4
    pull_warps: int = 4
    pixels: int = 128
    registers: int = 128


TUNING = Tuning()


@triton.jit
def prepare_kernel(
    centres_all, origin_all, book_all, columns_all, CHANNELS: tl.constexpr, SS: tl.constexpr,
    K: tl.constexpr, D: tl.constexpr, KP: tl.constexpr, DP: tl.constexpr,
):  # fmt: skip
    """An image's mean colour, and its centres less that: by centre (K, D), and by component (D, K)."""
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
    moved = tl.where(used, centres - origin[None, :], 0.0)
    tl.store(book_all + b * KP * DP + i * DP + j, moved)
    tl.store(columns_all + b * KP * DP + j * KP + i, moved)


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
def mix_kernel(
    images, assigned, noise_all, origin_all, book_all, columns_all, mixed_all, similarity_all, n, columns, H,
    W, colder, beta, CHANNELS: tl.constexpr, S: tl.constexpr, DRAWN: tl.constexpr, NOISY: tl.constexpr,
    K: tl.constexpr, D: tl.constexpr, KP: tl.constexpr, DP: tl.constexpr, RB: tl.constexpr,
    UNROLL: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """What windows are mixed to, and −beta times their squared distance from it."""
    b = tl.program_id(1).to(tl.int64)
    plane = tl.full((), 0, dtype=tl.int64) + n
    noise, columns_memory = noise_all + b * D * plane, columns_all + b * KP * DP
    origin, seen_image = origin_all + b * DP, assigned + b * CHANNELS * H * W
    rows = tl.program_id(0) * RB + tl.arange(0, RB)
    i, j = tl.arange(0, KP), tl.arange(0, DP)
    ok = rows < n
    used = (j < D)[:, None] & ok[None, :]
    distance = distances(
        seen_image, noise, columns_memory, origin, rows, ok, plane, columns, H, W, S, True, DRAWN, K, D, KP,
        RB, UNROLL,
    )  # fmt: skip
    across = tl.load(columns_memory + j[:, None] * KP + i[None, :])
    mixed = tl.dot(across, softened(distance, colder), input_precision=PRECISION)
    tl.store(mixed_all + (b * D + j[:, None]) * plane + rows[None, :], mixed, mask=used)
    if NOISY:
        windows = patches_of(seen_image, noise, origin, rows, used, plane, columns, H, W, S, True, DRAWN, DP)
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
    DRAWN: tl.constexpr, NOISY: tl.constexpr, MEANS: tl.constexpr, K: tl.constexpr, D: tl.constexpr,
    KP: tl.constexpr, DP: tl.constexpr, RB: tl.constexpr, STRIP: tl.constexpr, UNROLL: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Changes of a strip's patches: windows' in place of what they are mixed to, others' as pixels."""
    b = tl.program_id(1).to(tl.int64)
    strip = tl.program_id(0)
    plane = tl.full((), 0, dtype=tl.int64) + n
    clean, seen_image = images + b * CHANNELS * H * W, assigned + b * CHANNELS * H * W
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
            seen_image, noise, columns_memory, origin, rows, ok, plane, columns, H, W, S, SLIDING, DRAWN, K,
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
            blended = pixel(
                blended_all + b * CHANNELS * H * W, index, component, columns, H, W, used, S, True
            )
            offset = component % (S * S)  # the same for all channels
            largest = pixel(largest_all + b * H * W, index, offset, columns, H, W, used, S, True)
            scale = pixel(scale_all + b * H * W, index, offset, columns, H, W, used, S, True)
            similarity = tl.load(similarity_all + b * n + rows, mask=ok, other=0.0)
            given *= tl.where(used, tl.exp(similarity[None, :] - largest) * scale, 0.0)
            # Through the similarity, which decides a window's share of its pixels.
            steep = 2.0 * beta * tl.sum(given * (mixed - blended), axis=0)
            if NOISY:
                windows = patches_of(
                    seen_image, noise, origin, rows, used, plane, columns, H, W, S, True, DRAWN, DP
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
        if MEANS:
            seen = patches_of(
                seen_image, noise, origin, rows, used, plane, columns, H, W, S, SLIDING, DRAWN, DP
            )
            sums = tl.dot(weights, tl.trans(slopes), sums, input_precision=PRECISION)
            sums = tl.dot(pulls, tl.trans(seen), sums, input_precision=PRECISION)
            totals += tl.sum(pulls, axis=1)  # zero where there is no patch, as its slopes are
        if SLIDING:
            tl.debug_barrier()  # all threads have what these windows were mixed to
            tl.store(mixed_memory, changes + fit, mask=used)
        else:
            row, column = corner(index, columns, S, False)
            at = (component // (S * S) * H + row + component // S % S) * W + column + component % S
            tl.store(output + b * CHANNELS * H * W + at, changes, mask=used)
    if MEANS:
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


def serves(dimensions: int, codes: int) -> bool:
    """Whether codebooks of this size fit."""
    return power_of_two(codes, least=16) * power_of_two(dimensions + 1, least=16) <= MOST_VALUES


def soft_gradient(
    padded: Tensor,
    assigned: Tensor,
    centres: Tensor,
    slopes: Tensor,
    recipe: Recipe,
    draw: Draw,
    *,
    temperature: float,
    means: bool,
    tuning: Tuning | None = None,
) -> Tensor:
    """The gradient of the soft surrogate towards the padded images; Native.soft_gradient says what is given.

    Values are not looked at, which would wait for the GPU: a slope that is no number stays visible.
    """
    for name, each in (("images", padded), ("assigned", assigned), ("slopes", slopes)):
        if each.shape != padded.shape or each.device != padded.device:
            raise InvalidInputError(
                f"{name} of shape {tuple(each.shape)} on {each.device} should be as the images, "
                f"{tuple(padded.shape)} on {padded.device}"
            )
    check_images(padded, recipe, draw)
    check_centres(centres, padded, recipe)
    dimensions, codes = centres.shape[2], centres.shape[1]
    if not serves(dimensions, codes):
        raise InvalidInputError(
            f"centres of shape {tuple(centres.shape)}: k·d should be at most {MOST_VALUES}, both raised to "
            "powers of two"
        )
    images = padded.detach().float().contiguous()
    seen = images if assigned is padded else assigned.detach().float().contiguous()
    books, given = centres.detach().float().contiguous(), slopes.detach().float().contiguous()
    output = torch.empty_like(images)
    plan = _Plan.of(images, recipe, codes, means=means, tuning=tuning or TUNING)
    step = max(1, min(workspace.AT_ONCE, recipe.memory // plan.bytes))
    for first in range(0, len(images), step):
        part = slice(first, first + step)
        plan.run(
            images[part], seen[part], books[part], given[part], output[part], draw[part],
            temperature=temperature, apart=plan.drawn or seen is not images,
        )  # fmt: skip
    return output.to(padded.dtype)


@dataclass(frozen=True)
class _Plan:
    """The launches for images of one shape."""

    recipe: Recipe
    channels: int
    height: int
    width: int
    codes: int
    means: bool
    tuning: Tuning

    @classmethod
    def of(cls, images: Tensor, recipe: Recipe, codes: int, *, means: bool, tuning: Tuning) -> "_Plan":
        """Matrix units that take 32-bit values are there from compute capability 8.0 on."""
        if images.is_cuda and torch.cuda.get_device_capability(images.device) < (8, 0):
            tuning = Tuning(precision="ieee")
        return cls(recipe, *images.shape[1:], codes, means, tuning)

    @property
    def sliding(self) -> bool:
        return isinstance(self.recipe.grid, Sliding)

    @property
    def drawn(self) -> bool:
        return self.recipe.tau > 0

    @property
    def n(self) -> int:
        return self.recipe.grid.count(self.height, self.width)

    @property
    def dimensions(self) -> int:
        return self.channels * self.recipe.grid.size**2

    @property
    def padded_codes(self) -> int:
        return power_of_two(self.codes, least=16)

    @property
    def padded_dimensions(self) -> int:
        """Room for the size of a cluster behind its sum."""
        return power_of_two(self.dimensions + 1, least=16)

    def rows(self, most: int) -> int:
        """Patches at once: few where there are many centres, all of whose distances a program holds."""
        return max(16, min(most, 4096 // max(self.padded_codes, self.padded_dimensions)))

    def options(self, warps: int, registers: int = 0) -> dict[str, int]:
        """How a kernel is compiled: with all registers, and more warps, where a program holds much."""
        if max(self.padded_codes, self.padded_dimensions) >= 128:
            return compiled({"num_warps": max(8, warps)})
        return compiled({"num_warps": warps, **({"maxnreg": registers} if registers else {})})

    @property
    def strip(self) -> int:
        return _SHORT if self.n <= workspace.SMALL else _LONG

    @property
    def strips(self) -> int:
        return -(-self.n // self.strip)

    @property
    def bytes(self) -> int:
        """Of one image, beside input and output."""
        book = self.padded_codes * self.padded_dimensions
        values = 3 * book + (self.strips * book + self.n) * self.means
        values += self.n * self.dimensions * (self.sliding + self.drawn)
        if self.sliding:
            values += self.n + self.height * self.width * (self.channels + 2)
        return 4 * values

    def run(
        self, images: Tensor, assigned: Tensor, centres: Tensor, slopes: Tensor, output: Tensor, draw: Draw,
        *, temperature: float, apart: bool,
    ) -> None:  # fmt: skip
        """The gradients of some images into output."""
        batch, recipe, tuning = len(images), self.recipe, self.tuning
        n, d, kp, dp = self.n, self.dimensions, self.padded_codes, self.padded_dimensions
        size, pixels = recipe.grid.size, self.height * self.width
        window_rows, columns = recipe.grid.shape(self.height, self.width)

        def floats(*shape: int) -> Tensor:
            return images.new_empty(batch, *shape)

        nothing = floats(0)
        origin, book, by_component = floats(dp), floats(kp, dp), floats(dp, kp)
        noise = floats(d, n) if self.drawn else nothing
        mixed, similarity = (floats(d, n), floats(n)) if self.sliding else (nothing, nothing)
        blended = floats(self.channels, pixels) if self.sliding else nothing
        largest, scale = (floats(pixels), floats(pixels)) if self.sliding else (nothing, nothing)
        partial = floats(self.strips, kp, dp) if self.means else nothing
        labels = torch.empty((batch, n if self.means else 0), dtype=torch.int32, device=images.device)
        sizes = {"D": d, "KP": kp, "DP": dp}
        place = (columns, self.height, self.width)
        inner = {
            "CHANNELS": self.channels, "S": size, "DRAWN": self.drawn, "K": self.codes,
            "NOISY": recipe.weights_from == "noisy", "UNROLL": tuning.unroll, "PRECISION": tuning.precision,
            **sizes,
        }  # fmt: skip
        outer = {"CHANNELS": self.channels, "CP": power_of_two(self.channels), "S": size, "D": d}
        blocks = (-(-pixels // tuning.pixels), batch)

        prepare_kernel[(batch,)](
            centres, origin, book, by_component, CHANNELS=self.channels, SS=size**2, K=self.codes, **sizes
        )
        if self.drawn:
            key = torch.tensor([draw.seed - 2**64 if draw.seed >= 2**63 else draw.seed], device=images.device)
            noise_kernel[(-(-n * d // (4 * _COUNTERS)), batch)](
                noise, draw.streams.contiguous(), key, n, n * d, recipe.tau, STAGE=int(Stage.ASSIGNMENT), D=d,
                QB=_COUNTERS,
            )  # fmt: skip
        if self.sliding:
            rows = self.rows(tuning.mix_rows)
            mix_kernel[(-(-n // rows), batch)](
                images, assigned, noise, origin, book, by_component, mixed, similarity, n, *place,
                1 / temperature, recipe.beta, RB=rows, **inner, **self.options(tuning.mix_warps),
            )  # fmt: skip
            blend_kernel[blocks](
                mixed, similarity, blended, largest, scale, n, window_rows, *place, PB=tuning.pixels, **outer
            )
        pull_kernel[(self.strips, batch)](
            images, assigned, slopes, noise, origin, book, by_component, mixed, similarity, blended, largest,
            scale, labels, partial, output, n, self.strips, *place, 1 / temperature, recipe.beta,
            SLIDING=self.sliding, APART=apart, MEANS=self.means, STRIP=self.strip,
            RB=self.rows(tuning.pull_rows), **inner, **self.options(tuning.pull_warps, tuning.registers),
        )  # fmt: skip
        if self.means:
            moves = floats(kp, dp)
            move_kernel[(batch,)](partial, moves, self.strips, **sizes)
        else:
            moves = nothing
        if self.means or self.sliding:
            gather_kernel[blocks](
                mixed, labels, moves, output, n, window_rows, *place, SLIDING=self.sliding, MEANS=self.means,
                KP=kp, DP=dp, PB=tuning.pixels, **outer,
            )  # fmt: skip
