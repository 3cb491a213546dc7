"""The compiled CPU kernel against the reference, in every build that this processor runs."""

import ctypes
import dataclasses
import importlib.util
import math
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from conftest import noise_images
from torch import Tensor

import vqshield as vq
from vqshield.core import checks
from vqshield.core.errors import InvalidInputError
from vqshield.quantization import kernels as clustering
from vqshield.quantization.kernels import native
from vqshield.quantization.kernels.base import Recipe
from vqshield.quantization.kernels.lloyd import nearest
from vqshield.quantization.kernels.native import Native
from vqshield.quantization.kernels.reference import Reference, noisy_patches
from vqshield.quantization.noise import Draw, Stage
from vqshield.quantization.patches import Disjoint, PatchGrid, Sliding
from vqshield.quantization.pixels import narrowed, widened
from vqshield_paper.speed.lloyd import lloyd

CPU = torch.device("cpu")
SOURCE = Path(__file__).resolve().parents[3] / "native"
MISSING = Native().missing(CPU)
BUILDS = [] if MISSING else native.available()
COMPILED = pytest.mark.skipif(MISSING is not None, reason=str(MISSING))
REFERENCE = Reference()


def _fuzz() -> ModuleType:
    """native/fuzz.py, which belongs to no package."""
    found = importlib.util.spec_from_file_location("fuzz", SOURCE / "fuzz.py")
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    sys.modules["fuzz"] = module  # where its dataclasses look for their module
    found.loader.exec_module(module)
    return module


FUZZ = _fuzz()


@pytest.fixture(params=BUILDS or ["none"])
def kernel(request: pytest.FixtureRequest) -> Native:
    """Every build in turn."""
    if MISSING is not None:
        pytest.skip(MISSING)
    return Native(request.param)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """The reference's small steps: its threads would wait for each other where the machine is busy."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def recipe(grid: Disjoint | Sliding, codes: int = 6, **changes: object) -> Recipe:
    plain = Recipe(
        grid=grid,
        codes=codes,
        iterations=20,
        init="kmeans++",
        tolerance=0.0,
        sigma=4 / 255,
        tau=4 / 255,
        beta=2.0,
    )
    return dataclasses.replace(plain, **changes)


def draw(count: int, seed: int = 2**63 + 11) -> Draw:
    return Draw(seed, torch.arange(count) * 7919 - 3)


def padded(images: Tensor, grid: PatchGrid) -> Tensor:
    return grid.pad(images)


def assert_agrees(kernel: Native, images: Tensor, how: Recipe) -> None:
    """Codebook, assignments, output; and the two steps together give the same as one after the other."""
    ready, which = padded(images, how.grid), draw(len(images))
    centres = kernel.codebook(ready, how, which)
    expected = REFERENCE.codebook(ready, how, which)
    scale = 1 + 7 * max(how.sigma, how.tau)
    assert float((centres - expected).abs().max()) < 1e-6 * scale
    output = kernel.quantize(ready, expected, how, which)
    assert torch.equal(
        kernel.assignments(ready, expected, how, which), reference_labels(ready, expected, how, which)
    )
    assert float((output - REFERENCE.quantize(ready, expected, how, which)).abs().max()) < 2e-6
    assert torch.equal(kernel.shield(ready, how, which), kernel.quantize(ready, centres, how, which))


def reference_labels(images: Tensor, centres: Tensor, how: Recipe, which: Draw) -> Tensor:
    noisy = noisy_patches(images, how, how.tau, Stage.ASSIGNMENT, which)
    return torch.cat([nearest(block, noisy.fixed.round(centres)) for block in noisy], 1)


def inertia(images: Tensor, centres: Tensor, how: Recipe, which: Draw) -> Tensor:
    points = torch.cat(list(noisy_patches(images, how, how.sigma, Stage.CODEBOOK, which)), 1)
    return torch.cdist(points, centres.double()).min(2).values.square().sum(1)


@pytest.mark.parametrize(("seed", "stream"), [(0, 0), (2**64 - 1, -1), (2**63 + 5, 2**62 + 3)])
def test_words_and_normals_are_those_of_the_reference(kernel: Native, seed: int, stream: int) -> None:
    blocks = 50_000
    words, values = np.empty(4 * blocks, np.uint32), np.empty(4 * blocks, np.float32)
    noise = kernel._library().vq_noise
    noise.argtypes = [ctypes.c_uint64, *[ctypes.c_int64] * 3, *[ctypes.c_void_p] * 2]
    noise(seed, stream, int(Stage.ASSIGNMENT), blocks, words.ctypes.data, values.ctypes.data)
    which = Draw(seed, torch.tensor([stream]))
    assert np.array_equal(which.words(Stage.ASSIGNMENT, 0, 4 * blocks)[0].numpy(), words)
    error = np.abs(which.normals(Stage.ASSIGNMENT, 0, 4 * blocks)[0].numpy() - values)
    assert error.max() < 1e-6
    assert error.mean() < 5e-8


@pytest.mark.parametrize("scale", [2.0**-24, 1.0, 2.0**16])
def test_ties_go_to_the_lowest_number(kernel: Native, scale: float) -> None:
    # A third of these points are as near to a second centre, and some centres are equal. Powers of two, so
    # that what the kernel subtracts first is exact.
    whole = torch.randint(0, 3, (2, 3000, 6), generator=torch.Generator().manual_seed(4)).double()
    distances = (whole[:, :, None] - whole[:, None, :32]).square().sum(3)
    nearest_two = distances.sort(2).values[:, :, :2]
    assert float((nearest_two[:, :, 0] == nearest_two[:, :, 1]).double().mean()) > 0.3
    lowest = (64 * distances + torch.arange(32)).argmin(2)
    members = torch.nn.functional.one_hot(lowest, 32).double()
    counts = members.sum(1)[:, :, None]
    means = members.transpose(1, 2) @ whole / counts.clamp(min=1)
    expected = torch.where(counts > 0, means, whole[:, :32])  # an empty cluster keeps its centre
    points = (scale * whole).float()
    found = lloyd(kernel, points, points[:, :32].clone(), iterations=1, tolerance=0.0)
    assert torch.allclose(found.double() / scale, expected, rtol=0, atol=1e-6)


def test_16_bits_decide_as_float32_does(kernel: Native) -> None:
    # Points of this size are compared in float32 alone; a power of two changes nothing else.
    points = torch.randn(4, 900, 27, generator=torch.Generator().manual_seed(5))
    points = (points + 2 * points.roll(1, 1)).mul(256).round() / 256
    start = points[:, :32].clone()
    found = lloyd(kernel, points, start, iterations=10, tolerance=0.0)
    tiny = 2.0**-30
    assert torch.equal(lloyd(kernel, tiny * points, tiny * start, iterations=10, tolerance=0.0), tiny * found)


@pytest.mark.parametrize(
    ("grid", "codes", "init"),
    [
        (Sliding(3), 25, "kmeans++"),
        (Sliding(3), 25, "random"),
        (Disjoint(2), 25, "kmeans++"),
        (Disjoint(1), 25, "kmeans++"),
    ],
    ids=str,
)
@COMPILED
def test_natural_images_agree(grid: Disjoint | Sliding, codes: int, init: str) -> None:
    from vqshield.data import sample

    images, how, which = sample(128).floats(), recipe(grid, codes, init=init), draw(128)
    ours, theirs = Native().codebook(images, how, which), REFERENCE.codebook(images, how, which)
    labels = Native().assignments(images, ours, how, which), reference_labels(images, theirs, how, which)
    same = labels[0] == labels[1]
    assert float(same.double().mean()) >= 0.999
    difference = Native().shield(images, how, which) - REFERENCE.shield(images, how, which)
    agreeing = same.all(1)
    assert float(agreeing.double().mean()) > 0.99
    assert float(difference[agreeing].abs().max()) < 1e-4
    ratio = inertia(images, ours, how, which) / inertia(images, theirs, how, which)
    assert float((ratio - 1).abs().max()) < 1e-3


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
@pytest.mark.parametrize("size", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("sliding", [False, True])
def test_any_size_and_number_of_channels(kernel: Native, sliding: bool, size: int, channels: int) -> None:
    grid = Sliding(size) if sliding else Disjoint(size, "reflect")
    for height, width in ((5 + size, 3 * size), (11, 37), (size, 70)):
        images = noise_images(3, channels, height, width)
        count = grid.count(height, width)
        for codes in {1, min(7, count), min(26, count)}:
            assert_agrees(kernel, images, recipe(grid, codes, init="random" if codes == 7 else "kmeans++"))


@pytest.mark.parametrize("init", ["kmeans++", "random"])
@pytest.mark.parametrize("grid", [Disjoint(1), Disjoint(2), Sliding(2)], ids=str)
def test_as_many_centres_as_patches(kernel: Native, grid: Disjoint | Sliding, init: str) -> None:
    images = noise_images(2, 3, 12, 12)
    codes = grid.count(12, 12)
    assert_agrees(kernel, images, recipe(grid, codes, init=init))
    exact = kernel.shield(images, recipe(grid, codes, init="random", sigma=0.0, tau=0.0), draw(2))
    assert float((exact - images).abs().max()) < 1e-6, "every patch is its own centre"


@pytest.mark.parametrize("weights_from", ["clean", "noisy"])
@pytest.mark.parametrize("beta", [0.0, 2.0, 6502.5, 130050.0])
def test_weights_of_any_sharpness(kernel: Native, natural: Tensor, beta: float, weights_from: str) -> None:
    images, which = natural[:8], draw(8)
    how = recipe(Sliding(3), 12, beta=beta, weights_from=weights_from)
    centres = REFERENCE.codebook(images, how, which)
    difference = kernel.quantize(images, centres, how, which) - REFERENCE.quantize(
        images, centres, how, which
    )
    # A float32 window is off by 2^-25 here and there, and an exponent by beta times as much.
    assert float(difference.abs().max()) < 2e-6 + 1e-9 * beta


@pytest.mark.parametrize(
    "changes",
    [
        {"tolerance": 0.05},
        {"tolerance": 1.0},
        {"iterations": 1},
        {"sigma": 0.0},
        {"tau": 0.0},
        {"sigma": 0.25, "tau": 0.5},
        {"sigma": 1.0, "tau": 0.0, "iterations": 5},
    ],
    ids=str,
)
def test_other_settings(kernel: Native, natural: Tensor, changes: dict[str, object]) -> None:
    for grid in (Sliding(3), Disjoint(2)):
        assert_agrees(kernel, natural[:6], recipe(grid, 11, **changes))


def test_constant_images_duplicates_and_few_values(kernel: Native) -> None:
    flat = torch.full((1, 3, 9, 9), 0.3)
    two = torch.zeros(1, 3, 9, 9)
    two[..., 4:] = 1.0
    steps = (torch.arange(243).view(1, 3, 9, 9) % 4) / 3
    images = torch.cat([flat, torch.zeros_like(flat), torch.ones_like(flat), two, steps])
    for grid in (Sliding(2), Disjoint(3), Disjoint(1)):
        for init in ("kmeans++", "random"):
            for noise in (0.0, 4 / 255):
                assert_agrees(kernel, images, recipe(grid, 5, init=init, sigma=noise, tau=noise))


def test_ties_go_to_the_lowest_number_and_an_empty_cluster_keeps_its_centre(kernel: Native) -> None:
    patches = torch.tensor([0.5, 0.2, 0.9, 0.5]).view(1, 4, 1)
    start = torch.tensor([0.75, 0.25, 0.25, 0.75]).view(1, 4, 1)
    found = lloyd(kernel, patches, start, iterations=1, tolerance=0.0)[0, :, 0]
    assert found.tolist() == pytest.approx([(0.5 + 0.9 + 0.5) / 3, 0.2, 0.25, 0.75], abs=1e-7)


def test_lloyd_agrees_with_the_reference(kernel: Native) -> None:
    for count, dimensions, codes in ((1, 1, 1), (100, 7, 6), (500, 33, 40), (65, 48, 13)):
        patches = noise_images(3, count, dimensions) * 2 - 1
        start = patches[:, :codes].contiguous()
        found = lloyd(kernel, patches, start, iterations=6, tolerance=0.0)
        expected = REFERENCE.lloyd(patches, start, iterations=6, tolerance=0.0)
        assert float((found - expected).abs().max()) < 1e-5


@pytest.mark.parametrize("shape", [(3, 12, 900), (1, 9, 4000), (3, 400, 9)])
@pytest.mark.parametrize("memory", [1, 2**30])
def test_images_larger_than_a_strip(kernel: Native, shape: tuple[int, ...], memory: int) -> None:
    images = noise_images(1, *shape)
    for grid in (Sliding(3), Disjoint(3)):
        how = recipe(grid, 4, iterations=3, memory=memory, weights_from="noisy")
        assert_agrees(kernel, images, how)


@COMPILED
@pytest.mark.parametrize("noise", [0.0, 4 / 255, 1.0])
@pytest.mark.parametrize("grid", [Disjoint(1), Disjoint(2), Sliding(3)], ids=str)
def test_builds_agree_as_far_as_their_docstring_says(
    natural: Tensor, grid: Disjoint | Sliding, noise: float
) -> None:
    images, how, which = natural[:24], recipe(grid, 25, sigma=noise, tau=noise), draw(24)
    books = {isa: Native(isa).codebook(images, how, which) for isa in BUILDS}
    outputs = {isa: Native(isa).shield(images, how, which) for isa in BUILDS}
    fused = [isa for isa in BUILDS if isa != "generic"]
    for isa in fused[1:]:
        assert torch.equal(books[isa], books[fused[0]])
        assert torch.equal(outputs[isa], outputs[fused[0]])
    for isa in fused[:1]:
        difference = (books["generic"] - books[isa]).abs()
        assert float(difference.max()) <= (1e-6 if noise else 0.0)
        assert float((difference > 0).double().mean()) < 0.005
        assert float((outputs["generic"] - outputs[isa]).abs().max()) < 1e-5


@COMPILED
def test_half_way_pixels_are_rounded_by_one_rule() -> None:
    # Without noise a byte divided by 255 often lies half-way between two grid points, and real images have
    # many pixels equally near to two colours: a rounding of its own would give a backend other images.
    from vqshield.data import sample

    images, which = sample(60).floats(), draw(60)
    how = recipe(Disjoint(1), 25, sigma=0.0, tau=0.0)
    fixed = noisy_patches(images, how, 0.0, Stage.CODEBOOK, which).fixed
    assert float(((images.double() * 2.0**fixed.bits) % 1 == 0.5).double().mean()) > 0.1
    centres, expected = (backend.codebook(images, how, which) for backend in (Native(), REFERENCE))
    assert float((centres - expected).abs().max()) < 1e-6
    outputs = [backend.shield(images, how, which) for backend in (Native(), REFERENCE)]
    assert float((outputs[0] - outputs[1]).abs().max()) < 1e-6


def test_batch_threads_and_memory_change_no_bit(kernel: Native, natural: Tensor) -> None:
    images, how, which = natural[:5, :, 6:26, :19].contiguous(), recipe(Sliding(3), 25), draw(5)
    expected = kernel.shield(images, how, which)
    for threads in (2, 5):
        torch.set_num_threads(threads)
        assert torch.equal(kernel.shield(images, how, which), expected)
    alone = torch.cat([kernel.shield(images[i : i + 1], how, which[i : i + 1]) for i in range(5)])
    assert torch.equal(alone, expected)
    anew = dataclasses.replace(how, memory=1)
    assert torch.equal(kernel.shield(images, anew, which), expected)


@pytest.mark.parametrize("dtype", checks.NARROW_DTYPES, ids=str)
@pytest.mark.parametrize(
    ("grid", "weights_from"),
    [(Disjoint(1), "clean"), (Disjoint(3), "clean"), (Sliding(3), "clean"), (Sliding(3), "noisy")],
    ids=str,
)
def test_bytes_and_halves_change_no_bit(
    kernel: Native, natural: Tensor, grid: Disjoint | Sliding, weights_from: str, dtype: torch.dtype
) -> None:
    # Several strips, wide and high: the result takes the place of the image while that is still being read.
    shapes = ((3, 9, 2502), (3, 2502, 9))
    for images in (natural[:5, :, 6:27, :18], *(noise_images(1, *shape) for shape in shapes)):
        given = narrowed(images, dtype)
        pixels, which = widened(given), draw(len(images))
        how = recipe(grid, 5, iterations=2, weights_from=weights_from, memory=2**16)
        expected, centres = kernel.shield(pixels, how, which), kernel.codebook(pixels, how, which)
        assert torch.equal(kernel.shield(given, how, which), narrowed(expected, dtype))
        assert torch.equal(kernel.codebook(given, how, which), centres)
        assert torch.equal(kernel.quantize(given, centres, how, which), narrowed(expected, dtype))
        labels = kernel.assignments(given, centres, how, which)
        assert torch.equal(labels, kernel.assignments(pixels, centres, how, which))


@pytest.mark.parametrize("dtype", checks.NARROW_DTYPES, ids=str)
def test_every_byte_and_half_is_converted_as_torch_does(kernel: Native, dtype: torch.dtype) -> None:
    bits = torch.arange(256).byte() if dtype == torch.uint8 else torch.arange(2**15).short().view(dtype)
    stored = bits if dtype == torch.uint8 else bits[bits <= 1]
    alone = recipe(Disjoint(1), 1, sigma=0.0, tau=0.0)

    def as_images(values: Tensor) -> tuple[Tensor, Draw]:
        return values.view(-1, 1, 1, 1), draw(len(values))

    given, which = as_images(stored)
    assert torch.equal(kernel.codebook(given, alone, which), kernel.codebook(widened(given), alone, which))
    # Back again: every value, half-way to the next one, and the floats beside both.
    exact = widened(stored)
    middle = (exact[1:] + exact[:-1]) / 2
    values = torch.cat([exact, middle, *(torch.nextafter(middle, end) for end in exact[[0, -1]])])
    given, which = as_images(stored[:1].expand(len(values)))
    found = kernel.quantize(given, values.view(-1, 1, 1), alone, which)
    assert torch.equal(found.flatten(), narrowed(values, dtype))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_halves_outside_are_refused_with_their_value(kernel: Native, dtype: torch.dtype) -> None:
    how, which = recipe(Disjoint(2), 5), draw(2)
    above, below = torch.nextafter(torch.tensor([1, 0], dtype=dtype), torch.tensor([2, -1], dtype=dtype))
    for wrong in (math.nan, -math.nan, math.inf, -math.inf, -0.5, 2.0, float(above), float(below)):
        images = torch.zeros(2, 3, 8, 8, dtype=dtype)
        images[1, 2, 7, 7] = wrong
        with pytest.raises(InvalidInputError, match=re.escape(f"images contain {wrong:.9g}; ")):
            kernel.shield(images, how, which)
    assert not kernel.shield(-torch.zeros(2, 3, 8, 8, dtype=dtype), how, which).isnan().any()


_INTERRUPTED = """
import os, signal, threading, time
import torch, vqshield as vq
images = torch.rand(1, 3, 1500, 1500).expand({batch}, -1, -1, -1)
defense = vq.SWRD(codes=64, backend="native", iterations=10_000, seed=1, memory={memory})
defense(images[:1, :, :20, :20])  # what a first call imports should not be interrupted
sent = []
def interrupt():
    sent.append(time.perf_counter())
    os.kill(os.getpid(), signal.SIGINT)
threading.Timer(0.5, interrupt).start()
try:
    defense(images)
except KeyboardInterrupt:
    print("interrupted after", time.perf_counter() - sent[0])
assert defense(images[:1, :, :20, :20]).isfinite().all()
"""


@COMPILED
@pytest.mark.parametrize(("batch", "memory"), [(1, 2**30), (3, 1)])
def test_an_interrupt_ends_a_long_call_within_a_second(batch: int, memory: int) -> None:
    script = _INTERRUPTED.format(batch=batch, memory=memory)  # hours of work, if it is not interrupted
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("interrupted after")
    assert float(done.stdout.split()[-1]) < 1


WRONG = [
    ({"images": torch.full((1, 3, 8, 8), math.nan)}, "images contain nan"),
    ({"images": torch.full((1, 3, 8, 8), math.inf)}, "images contain inf"),
    ({"images": torch.full((1, 3, 8, 8), 1.5)}, "images contain 1.5"),
    ({"images": torch.zeros(1, 3, 8, 8, dtype=torch.int16)}, "images of dtype torch.int16"),
    ({"images": torch.zeros(3, 8, 8)}, r"images of shape \(3, 8, 8\) should have 4 dimensions"),
    ({"images": torch.zeros(1, 3, 0, 8)}, r"images of shape \(1, 3, 0, 8\)"),
    ({"images": torch.zeros(1, 3, 7, 8)}, "images of 7×8 should be padded to multiples of size=2"),
    ({"images": torch.zeros(1, 3, 8, 8, device="meta")}, "images on meta"),
    ({"images": torch.zeros(1, 3, 8, 8).to_sparse()}, "should be a dense tensor"),
    ({"streams": torch.zeros(2, dtype=torch.int64)}, r"streams of shape \(2,\) should be \(1,\)"),
    ({"streams": torch.zeros(1)}, "streams of type torch.float32"),
    ({"seed": 2**64}, "seed=18446744073709551616 should be from 0"),
    ({"centres": torch.zeros(1, 5, 4)}, r"centres of shape \(1, 5, 4\) should be \(1, k, 12\)"),
    ({"centres": torch.zeros(2, 5, 12)}, r"centres of shape \(2, 5, 12\)"),
    ({"centres": torch.zeros(1, 0, 12)}, r"centres of shape \(1, 0, 12\) should have from 1"),
    ({"centres": torch.full((1, 5, 12), math.nan)}, "centres contain nan"),
    ({"centres": torch.full((1, 5, 12), 1e300, dtype=torch.float64)}, "centres contain 1e"),
    ({"centres": torch.zeros(1, 5, 12, dtype=torch.int64)}, "centres of type torch.int64"),
    ({"grid": Sliding(9)}, r"size=9 should be at most min\(h, w\)=8"),
    ({"iterations": 2**63}, "iterations=9223372036854775808 should be from 1 to 1000000"),
    ({"beta": 1.7e308}, "beta=1.7e.308 should be from 0 to 1e.06"),
    ({"sigma": 1e150}, "sigma=1e.150 should be from 0 to 1"),
    ({"tau": -0.1}, "tau=-0.1 should be from 0 to 1"),
    ({"init": ["random"]}, "init=.* is unknown"),
]


@pytest.mark.parametrize(("changes", "message"), WRONG, ids=lambda value: str(value)[:40])
def test_what_cannot_be_quantized_is_refused_with_its_name(
    kernel: Native, changes: dict[str, Any], message: str
) -> None:
    given = {"images": torch.zeros(1, 3, 8, 8), "centres": torch.zeros(1, 5, 12), "seed": 0}
    given |= {"streams": torch.zeros(1, dtype=torch.int64)}
    settings = {name: value for name, value in changes.items() if name not in given}
    given |= {name: value for name, value in changes.items() if name in given}

    def quantize() -> Tensor:
        how = dataclasses.replace(recipe(Disjoint(2), 5), **settings)
        return kernel.quantize(given["images"], given["centres"], how, Draw(given["seed"], given["streams"]))

    with pytest.raises(InvalidInputError, match=message):
        quantize()


def test_more_codes_than_patches_are_refused(kernel: Native) -> None:
    for call in (kernel.codebook, kernel.shield):
        with pytest.raises(InvalidInputError, match="codes=17 should be at most the number of patches n=16"):
            call(torch.zeros(1, 3, 8, 8), recipe(Disjoint(2), 17), draw(1))


def test_lloyd_refuses_values_and_settings_that_it_cannot_use(kernel: Native) -> None:
    patches = torch.rand(2, 50, 4)
    for wrong, message in ((math.nan, "nan"), (-math.inf, "-inf"), (2e6, "2e.06")):
        spoiled = patches.clone()
        spoiled[1, 49, 3] = wrong
        with pytest.raises(InvalidInputError, match=f"patches contain {message}"):
            lloyd(kernel, spoiled, patches[:, :8], iterations=3, tolerance=0.0)
        with pytest.raises(InvalidInputError, match=f"start contain {message}"):
            lloyd(kernel, patches, spoiled, iterations=3, tolerance=0.0)
    with pytest.raises(InvalidInputError, match="iterations=0 should be from 1 to 1000000"):
        lloyd(kernel, patches, patches[:, :8], iterations=0, tolerance=0.0)
    with pytest.raises(InvalidInputError, match="tolerance=nan should be from 0 to 1"):
        lloyd(kernel, patches, patches[:, :8], iterations=1, tolerance=math.nan)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("height", 9, "should be"),
        ("width", 2**40, "width=1099511627776 should be from 1"),
        ("batch", 3, "images of 1536 bytes should have 2304"),
        ("pixels", 4, "pixels=4 should be from 0 to 3"),
        ("pixels", 2, "images of 1536 bytes should have 768"),
        ("codes", 17, "codes=17 should be from 1 to 16"),
        ("size", 0, "size=0 should be from 1 to 8"),
        ("iterations", -(2**63), "iterations=-9223372036854775808 should be from 1"),
        ("sigma", math.nan, "sigma=nan should be from 0 to 1"),
        ("beta", 1.7e308, "beta=1.7e.308 should be from 0"),
        ("bound", 1.0, "bound=1 should be from 1.1"),
        ("images", None, "images should be given"),
        ("output", None, "output should be given"),
        ("streams_count", 1, "streams of 1 values should have 2"),
    ],
)
def test_the_kernel_itself_refuses_a_wrong_field(
    kernel: Native, field: str, value: object, message: str
) -> None:
    corrupting = FUZZ.Corrupting(kernel._isa, lambda job: setattr(job, field, value))
    with pytest.raises(InvalidInputError, match=message):
        corrupting.shield(torch.zeros(2, 3, 8, 8), recipe(Disjoint(2), 5), draw(2))


@COMPILED
def test_random_calls_are_answered_or_refused() -> None:
    tally = FUZZ.run(calls=400, seed=0)
    assert tally.calls == 400
    assert tally.taken > 150
    assert tally.refused > 100


@pytest.mark.parametrize(
    "settings",
    [
        {"sigma": 1.01},
        {"tau": 1e150},
        {"sigma": 10**400},
        {"beta": 1.7e308},
        {"iterations": 2**63},
        {"codes": 2**20 + 1},
    ],
    ids=str,
)
def test_settings_beyond_what_the_arithmetic_holds_are_refused(settings: dict[str, Any]) -> None:
    (name, value), *_ = settings.items()
    with pytest.raises(InvalidInputError, match=f"^{name}=.* should be from [01] to ") as caught:
        vq.SWRD(**settings)
    assert str(value)[:5] in str(caught.value)


_FORKED = """
import os, signal, threading
import torch
from vqshield.quantization.kernels.base import Recipe
from vqshield.quantization.kernels.native import Native
from vqshield.quantization.noise import Draw
from vqshield.quantization.patches import Sliding

def waited(work):
    child = os.fork()
    if child == 0:
        signal.alarm(60)  # a child that hangs is killed, and fails the test
        os._exit(0 if work() else 1)
    return os.waitpid(child, 0)[1] == 0

torch.set_num_threads(4)
torch.rand(10**6).sqrt().sum()  # torch's own threads are there, and lost in every child
how = Recipe(
    grid=Sliding(3), codes=25, iterations=20, init="kmeans++", tolerance=0.0, sigma=0.1, tau=0.1, beta=2.0
)
kernel, which = Native(), Draw(1, torch.arange(8))
for dtype in (torch.float32, torch.float64):
    images = torch.rand(8, 3, 48, 48).to(dtype)
    expected = kernel.shield(images, how, which).numpy()
    same = lambda: bool((kernel.shield(images, how, which).numpy() == expected).all())
    beside = threading.Thread(target=lambda: [same() for _ in range(20)])
    beside.start()  # the pool is at work in the moment of the fork
    for _ in range(3):
        assert waited(lambda: same() and same() and waited(same))
    beside.join()
print("as before")
"""


@COMPILED
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_it_works_in_a_forked_process() -> None:
    done = subprocess.run([sys.executable, "-c", _FORKED], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "as before\n"


_CROWDED = """
import os, torch
from concurrent.futures import ThreadPoolExecutor
from vqshield.quantization.kernels.base import Recipe
from vqshield.quantization.kernels.native import Native
from vqshield.quantization.noise import Draw
from vqshield.quantization.patches import Sliding

os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
torch.set_num_threads(4)
how = Recipe(
    grid=Sliding(3), codes=25, iterations=20, init="kmeans++", tolerance=0.0, sigma=0.1, tau=0.1, beta=2.0
)
kernel, which = Native(), Draw(1, torch.arange(3))
images = torch.rand(3, 3, 98, 98)
expected = kernel.shield(images, how, which)
with ThreadPoolExecutor(32) as callers:
    outputs = list(callers.map(lambda _: kernel.shield(images, how, which), range(32)))
print(all(torch.equal(output, expected) for output in outputs), kernel._library().vq_most_at_once())
"""


@COMPILED
@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system does not restrict a process")
def test_many_callers_work_on_no_more_images_at_once_than_there_are_cores() -> None:
    done = subprocess.run([sys.executable, "-c", _CROWDED], capture_output=True, text=True, timeout=300)
    assert done.stdout == "True 1\n", done.stderr


_MEASURED = """
import re
import torch
from vqshield.quantization.kernels.base import Recipe
from vqshield.quantization.kernels.native import Native
from vqshield.quantization.noise import Draw
from vqshield.quantization.patches import Disjoint, Sliding

def status(name):
    with open("/proc/self/status") as file:
        return 1024 * int(re.search(name + r":\\s+(\\d+)", file.read())[1])

def measure(grid, memory, side, weights_from):
    how = Recipe(
        grid=grid, codes=4, iterations=1, init="kmeans++", tolerance=0.0, sigma=0.1, tau=0.1, beta=2.0,
        weights_from=weights_from, memory=memory,
    )
    images = torch.rand(1, 3, side, side)
    Native().shield(images[:, :, :32, :32].contiguous(), how, Draw(1, torch.arange(1)))
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # the peak begins here
    before = status("VmRSS")
    output = Native().shield(images, how, Draw(1, torch.arange(1)))
    used = status("VmHWM") - before - 4 * output.numel()
    print(used, grid.count(side, side), memory)

torch.set_num_threads(1)
for grid, weights_from in ((Sliding(3), "clean"), (Sliding(3), "noisy"), (Disjoint(2), "clean")):
    for memory in (2**20, 2**24, 2**28):
        measure(grid, memory, 1200, weights_from)
"""


@COMPILED
@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="no peak of memory to reset here")
def test_the_memory_of_a_process_grows_as_the_docstring_says() -> None:
    done = subprocess.run([sys.executable, "-c", _MEASURED], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    rows = [tuple(map(int, line.split())) for line in done.stdout.splitlines()]
    assert len(rows) == 9
    for number, (used, patches, memory) in enumerate(rows):
        labels = patches * (20 if 3 <= number < 6 else 12)
        assert used <= memory + labels + 2**23


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """As if the package had been installed without a compiler."""
    monkeypatch.setattr(native, "_FOLDER", tmp_path)
    native._load.cache_clear()
    native._best.cache_clear()
    yield tmp_path
    native._load.cache_clear()
    native._best.cache_clear()


def test_without_a_compiled_kernel_it_says_so_and_torch_serves(elsewhere: Path) -> None:
    reason = Native().missing(CPU)
    assert reason is not None
    assert reason.startswith("no compiled kernel: no C++ compiler was at hand")
    assert clustering.get("auto", "cpu").name == "torch"
    with pytest.raises(ValueError, match="backend='native' cannot serve images on cpu: no compiled kernel"):
        vq.SWRD(backend="native")(noise_images(1, 3, 9, 9))


@COMPILED
@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler here")
def test_a_build_of_other_source_is_reported_not_called(elsewhere: Path) -> None:
    source, library = elsewhere / "old.c", elsewhere / "_native_generic.so"
    source.write_text("int vq_interface(void) { return 1; }")
    subprocess.run(["cc", "-shared", "-fPIC", str(source), "-o", str(library)], check=True)
    assert "was built from another version's source" in (Native().missing(CPU) or "")


def test_a_broken_file_is_reported_not_loaded(elsewhere: Path) -> None:
    (elsewhere / "_native_generic.so").write_bytes(b"not a library")
    assert "_native_generic.so" in (Native().missing(CPU) or "")


def test_it_serves_the_cpu_only_and_names_its_build() -> None:
    assert Native().missing(torch.device("cuda")) == "its kernel runs on the CPU"
    if MISSING is None:
        assert Native().kernel_name(CPU) in (f"native {BUILDS[-1]}", "native neon")
    with pytest.raises(MemoryError, match="no memory for its workspace"):
        native._check(native._OUT_OF_MEMORY)


@pytest.mark.slow
@COMPILED
@pytest.mark.skipif(shutil.which("g++") is None, reason="no GCC here")
def test_sanitizers_find_nothing() -> None:
    done = subprocess.run(
        [sys.executable, str(SOURCE / "sanitize.py"), "--brief", "--calls", "500"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
