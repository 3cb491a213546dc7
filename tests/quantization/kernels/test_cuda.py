"""The CUDA kernels against the reference, emulated on a CPU; tests/contracts run them for real on a GPU."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

import vqshield as vq
from quantization.kernels.emulated_cuda import EmulatedProgram, compiler, emulate
from vqshield.quantization import kernels as clustering
from vqshield.quantization.kernels.cuda import program, strips
from vqshield.quantization.kernels.cuda.resident import Resident
from vqshield.quantization.kernels.cuda.strips import Strips
from vqshield.quantization.noise import Draw

CPU = torch.device("cpu")
REFERENCE = clustering.get("torch")
DRAW = Draw(2**63 + 5, torch.tensor([5, -7]))
EMULATED = pytest.mark.skipif(compiler() is None, reason="no C++ compiler here to emulate a GPU with")

CASES = {
    "sliding": (vq.SWRD(size=2, codes=5, iterations=6), (3, 9, 10)),
    "noisy weights, tolerance": (
        vq.SWRD(size=3, codes=5, weights_from="noisy", beta=100.0, tolerance=0.01),
        (1, 9, 10),
    ),
    "disjoint, random start": (vq.PRD(size=2, codes=4, iterations=6, init="random"), (3, 10, 10)),
    "no noise": (vq.RandDisc(codes=17, iterations=3, sigma=0.0, tau=0.0), (2, 12, 12)),
    "much noise, a code a patch": (vq.RandDisc(codes=100, iterations=3, sigma=1.0, tau=0.5), (1, 10, 10)),
    "windows of 4, more dimensions": (vq.SWRD(size=4, codes=9, iterations=2), (3, 7, 8)),
    "a row that is no whole number of quads": (vq.SWRD(size=2, codes=7, iterations=3), (5, 12, 12)),
    "one column": (vq.RandDisc(codes=7, iterations=3), (3, 70, 1)),
}  # fmt: skip


@pytest.fixture(autouse=True)
def emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    emulate(monkeypatch.setattr)


def pictures(*shape: int) -> Tensor:
    return torch.rand(2, *shape, generator=torch.Generator().manual_seed(1))


def far(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).abs().max())


@EMULATED
@pytest.mark.parametrize("name", CASES)
def test_small_images_agree_with_the_reference(name: str) -> None:
    defense, shape = CASES[name]
    images, recipe = pictures(*shape), defense.recipe()
    found = Resident.of(images, recipe, defense.codes)
    assert found is not None
    centres, exact = found.run("centres", images, None, DRAW), REFERENCE.codebook(images, recipe, DRAW)
    assert far(centres, exact) < 1e-6
    shielded = found.run("images", images, None, DRAW)
    assert far(shielded, REFERENCE.shield(images, recipe, DRAW)) < 1e-5
    assert torch.equal(shielded, found.run("images", images, centres, DRAW)), "the two calls are the one"
    assert torch.equal(shielded[1:], found.run("images", images[1:], None, Draw(DRAW.seed, DRAW.streams[1:])))
    labels = found.run("labels", images, exact, DRAW)
    assert torch.equal(labels.long(), REFERENCE.assignments(images, exact, recipe, DRAW))


@EMULATED
@pytest.mark.parametrize(
    ("defense", "shape"),
    [
        (vq.SWRD(size=2, codes=5, iterations=6), (3, 24, 25)),
        (vq.SWRD(size=3, codes=5, tolerance=0.01), (1, 19, 30)),
        (vq.PRD(size=2, codes=4, iterations=6, init="random"), (3, 40, 40)),
        (vq.RandDisc(codes=17, iterations=3, sigma=0.0, tau=0.0), (2, 16, 16)),  # the last strip is full
        (vq.SWRD(size=2, codes=7, iterations=3, weights_from="noisy"), (5, 22, 22)),
    ],
)
def test_strips_agree_with_the_reference(
    monkeypatch: pytest.MonkeyPatch, defense: vq.Quantizer, shape: tuple[int, ...]
) -> None:
    monkeypatch.setattr(strips, "STRIP", 256)
    images, recipe = pictures(*shape), defense.recipe()
    found = Strips.of(images, recipe, defense.codes)
    assert found is not None
    n, d = found.shape.patches, found.shape.dimensions
    # As rows of a larger workspace, whose other values stay as they are.
    space = torch.full((2, defense.codes + 3, d + 2), 9.0)
    centres = space[:, : defense.codes, :d]
    found.fit(images, DRAW, centres)
    exact = REFERENCE.codebook(images, recipe, DRAW)
    assert far(centres + 0.5, exact) < 1e-6
    assert space[:, defense.codes :].eq(9).all()
    assert space[:, :, d:].eq(9).all()
    labels, similarities = torch.full((2, n + 5), -1, dtype=torch.int32), torch.full((2, n + 5), 9.0)
    found.label(images, DRAW, exact - 0.5, labels, similarities)
    assert torch.equal(labels[:, :n].long(), REFERENCE.assignments(images, exact, recipe, DRAW))
    assert labels[:, n:].eq(-1).all()
    alone = torch.empty(1, defense.codes, d)
    found.fit(images[1:], Draw(DRAW.seed, DRAW.streams[1:]), alone)
    assert torch.equal(alone, centres[1:])


@EMULATED
@pytest.mark.parametrize("channels", [1, 3, 4])
def test_sketches_pass_over_no_patch_that_a_new_centre_is_nearer_to(channels: int) -> None:
    """Smooth images, where sketches tell of most patches: the start is that of the reference all the same."""
    coarse = torch.rand(2, channels, 3, 3, generator=torch.Generator().manual_seed(3))
    images = torch.nn.functional.interpolate(coarse, (20, 21), mode="bilinear")
    recipe = vq.SWRD(size=3, codes=12, iterations=1).recipe()
    found = Strips.of(images, recipe, 12)
    assert found is not None
    centres = torch.empty(2, 12, 9 * channels)
    found.fit(images, DRAW, centres)
    assert far(centres + 0.5, REFERENCE.codebook(images, recipe, DRAW)) < 1e-6


@EMULATED
def test_similarities_of_strips_are_those_of_the_formula() -> None:
    defense, images = vq.SWRD(size=2, codes=4, iterations=2, beta=7.0, tau=0.0), pictures(3, 9, 10)
    found = Strips.of(images, defense.recipe(), 4)
    assert found is not None
    centres = REFERENCE.codebook(images, defense.recipe(), DRAW)
    labels, similarities = torch.empty(2, 72, dtype=torch.int32), torch.empty(2, 72)
    found.label(images, DRAW, centres - 0.5, labels, similarities)
    for b, window in ((0, 0), (1, 71), (1, 9)):
        y, x = divmod(window, 9)
        patch, centre = images[b, :, y : y + 2, x : x + 2].flatten(), centres[b, int(labels[b, window])]
        assert float(similarities[b, window]) == pytest.approx(
            -7.0 * float((patch - centre).square().sum()), rel=1e-4
        )


@EMULATED
def test_patches_as_near_to_two_centres_as_rounding_go_where_the_reference_puts_them() -> None:
    """Scores alone do not tell: with them, three of these 200 windows would go elsewhere."""
    images = 0.7 + 0.3 * pictures(3, 12, 12)
    recipe = vq.SWRD(size=3, codes=2, sigma=0.0, tau=0.0).recipe()
    middle = REFERENCE.codebook(images, replace(recipe, codes=1), DRAW)[:, 0]
    away = torch.randn(2, 27, generator=torch.Generator().manual_seed(2)).mul(1e-5)
    centres = torch.stack([middle + away, middle - away], 1)
    found = Resident.of(images, recipe, 2)
    assert found is not None
    expected = REFERENCE.assignments(images, centres, recipe, DRAW)
    assert 0 < int(expected.sum()) < expected.numel(), "a test that can fail"
    assert torch.equal(found.run("labels", images, centres, DRAW).long(), expected)


@EMULATED
def test_a_constant_image_and_far_centres() -> None:
    images = torch.full((2, 3, 8, 8), 0.3)
    recipe = vq.SWRD(size=2, codes=20, sigma=0.0, tau=0.0).recipe()
    found = Resident.of(images, recipe, 20)
    assert found is not None
    assert far(found.run("images", images, None, DRAW), images) < 1e-6
    centres = torch.full((2, 20, 12), 1e6)
    centres[:, 3] = 0.4
    assert found.run("labels", images, centres, DRAW).eq(3).all()


def test_what_finds_no_room_is_not_served(monkeypatch: pytest.MonkeyPatch) -> None:
    small, recipe = pictures(3, 32, 32), vq.SWRD().recipe()
    if program.can_run(CPU):
        assert Resident.of(small, recipe, 25) is not None
    assert Resident.of(small, recipe, 1000) is None, "more operands than registers"
    assert Resident.of(pictures(3, 64, 64), recipe, 25) is None, "more patches than shared memory"
    assert Strips.of(small, recipe, 1000) is None
    assert Strips.of(pictures(3, 40, 40), vq.SWRD(size=7).recipe(), 25) is None, "more dimensions than lanes"
    monkeypatch.setenv("VQSHIELD_CUDA", "off")
    assert Resident.of(small, recipe, 24) is None
    assert Strips.of(small, recipe, 24) is None
    monkeypatch.delenv("VQSHIELD_CUDA")
    assert (Resident.of(small, recipe, 24) is None) != program.can_run(CPU), "off is not for ever"


def test_no_images_are_no_launch() -> None:
    images = torch.empty(0, 3, 8, 8)
    found = Resident.of(images, vq.RandDisc(codes=4).recipe(), 4)
    if found is None:
        pytest.skip("no C++ compiler here to emulate a GPU with")
    assert found.run("images", images, None, Draw(0, torch.empty(0, dtype=torch.int64))).shape == images.shape


@EMULATED
def test_source_that_does_not_compile_is_named() -> None:
    with pytest.raises(RuntimeError, match=r"resident\.cu could not be compiled for a CPU"):
        EmulatedProgram("resident.cu", {"THREADS": 64}, CPU)


def test_every_header_is_handed_to_the_compiler() -> None:
    sources = [*program.SOURCES.glob("*.cu"), *program.SOURCES.glob("*.cuh")]
    assert {path.name for path in sources} >= {"resident.cu", "strips.cu"}
    included = {name for path in sources for name in re.findall(r'#include "(.+)"', path.read_text("utf-8"))}
    assert included == {*program.HEADERS, "emulated.hpp"}
    assert all((program.SOURCES / name).is_file() for name in included)


def test_the_sources_are_part_of_the_package() -> None:
    written = (Path(__file__).parents[3] / "pyproject.toml").read_text("utf-8")
    for suffix in {path.suffix for path in program.SOURCES.iterdir()} - {".py", ".pyc", ""}:
        assert f'"quantization/kernels/cuda/*{suffix}"' in written
