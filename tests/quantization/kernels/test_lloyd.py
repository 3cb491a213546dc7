import itertools

import pytest
import torch
from conftest import noise_images
from torch import Tensor

import vqshield as vq
from vqshield.quantization.fixed_point import FixedPoint
from vqshield.quantization.kernels.lloyd import nearest, run_lloyd
from vqshield.quantization.kernels.noisy import NoisyPatches
from vqshield.quantization.kernels.starts import START, kmeans_plus_plus, random_patches
from vqshield.quantization.noise import Draw, Stage
from vqshield.quantization.patches import Sliding


def noisy(images: Tensor, size: int = 2, sigma: float = 4 / 255) -> NoisyPatches:
    fixed = FixedPoint.fitting(images.shape[1] * size**2, bound=1 + 7 * sigma)
    draw = Draw(3, torch.arange(len(images)))
    return NoisyPatches(images, Sliding(size), sigma, Stage.CODEBOOK, draw, fixed)


def points(patches: NoisyPatches) -> Tensor:
    return torch.cat(list(patches), 1)


def fit(patches: NoisyPatches, codes: int, iterations: int, init: str, tolerance: float) -> Tensor:
    return run_lloyd(patches, START[init](patches, codes), iterations=iterations, tolerance=tolerance)


def inertia(patches: NoisyPatches, centres: Tensor) -> Tensor:
    return torch.cdist(points(patches), centres).min(2).values.square().sum(1)


@pytest.mark.parametrize("init", ["kmeans++", "random"])
def test_at_convergence_each_centre_is_the_mean_of_its_patches(init: str, natural: Tensor) -> None:
    patches = noisy(natural[:6])
    centres = fit(patches, 8, 500, init, 0.0)
    labels = nearest(points(patches), centres)
    for image in range(6):
        for number in range(8):
            members = points(patches)[image][labels[image] == number]
            assert len(members) > 0
            assert float((members.mean(0) - centres[image, number]).abs().max()) <= 2.0**-23


def test_each_image_stops_on_its_own_and_further_iterations_change_nothing(natural: Tensor) -> None:
    patches = noisy(natural[:6])
    converged = fit(patches, 4, 300, "kmeans++", 0.0)
    assert torch.equal(converged, fit(patches, 4, 600, "kmeans++", 0.0))


def test_more_iterations_never_raise_the_inertia(natural: Tensor) -> None:
    patches = noisy(natural[:4])
    values = [inertia(patches, fit(patches, 10, i, "random", 0.0)) for i in (1, 2, 5, 10, 20)]
    for before, after in itertools.pairwise(values):
        assert bool((after <= before * (1 + 1e-9)).all())


def test_kmeans_plus_plus_starts_better_than_random_patches(natural: Tensor) -> None:
    patches = noisy(natural[:32])
    careful, careless = (inertia(patches, fit(patches, 15, 1, init, 0.0)) for init in ("kmeans++", "random"))
    assert float(careful.mean()) < float(careless.mean())


def test_tolerance_stops_earlier_and_zero_not_before_convergence(natural: Tensor) -> None:
    patches = noisy(natural[:4])
    exact = inertia(patches, fit(patches, 10, 300, "kmeans++", 0.0))
    loose = inertia(patches, fit(patches, 10, 300, "kmeans++", 0.05))
    at_once = fit(patches, 10, 300, "kmeans++", 1.0)
    assert bool((loose >= exact * (1 - 1e-9)).all())
    assert float((loose / exact).max()) < 1.1
    assert torch.equal(at_once, fit(patches, 10, 2, "kmeans++", 0.0))


def test_an_empty_cluster_keeps_its_centre() -> None:
    images = torch.zeros(1, 1, 4, 4)
    images[..., 2:] = 1.0
    patches = noisy(images, size=1, sigma=0.0)
    centres = fit(patches, 5, 10, "kmeans++", 0.0)
    # Two values for five centres: the surplus centres win no patch and stay on the values they started from.
    assert set(centres.flatten().tolist()) == {0.0, 1.0}


def test_ties_go_to_the_lowest_index() -> None:
    centres = torch.tensor([[[0.75], [0.25], [0.25], [0.75]]], dtype=torch.float64)
    patches = torch.tensor([[[0.5], [0.2], [0.9]]], dtype=torch.float64)
    assert nearest(patches, centres).tolist() == [[0, 1, 0]]


def test_random_start_takes_distinct_patches() -> None:
    images = noise_images(40, 1, 4, 4)
    patches = noisy(images, size=1, sigma=0.0)
    for codes in (1, 7, 16):
        start = fit(patches, codes, 1, "random", 1.0)
        assert start.shape == (40, codes, 1)
    for row, values in zip(random_patches(patches, 16)[..., 0], points(patches)[..., 0], strict=True):
        assert sorted(row.tolist()) == sorted(values.tolist()), "k = n takes every patch once"


def test_random_start_takes_every_patch_equally_often() -> None:
    images = (torch.arange(10) / 10).view(1, 1, 2, 5).expand(6000, -1, -1, -1).contiguous()
    chosen = (random_patches(noisy(images, size=1, sigma=0.0), 3)[..., 0] * 10).round().long()
    counts = torch.bincount(chosen.flatten(), minlength=10).double()
    # Each of ten patches is among three of ten with probability .3: 1800 ± 35.5 of 6000.
    assert float((counts - 1800).abs().max()) < 4.5 * 35.5


def test_kmeans_plus_plus_draws_by_squared_distance() -> None:
    values = torch.tensor([0.0, 0.0, 0.0, 0.25, 0.5, 1.0])
    images = values.view(1, 1, 2, 3).expand(8000, -1, -1, -1).contiguous()
    start = kmeans_plus_plus(noisy(images, size=1, sigma=0.0), 2)[..., 0]
    from_zero = start[start[:, 0] == 0][:, 1]
    total = 0.25**2 + 0.5**2 + 1
    assert bool((from_zero > 0).all()), "a patch at distance zero is never drawn"
    for value in (0.25, 0.5, 1.0):
        share, expected = float((from_zero == value).double().mean()), value**2 / total
        assert share == pytest.approx(expected, abs=4.5 * (expected * (1 - expected) / len(from_zero)) ** 0.5)


@pytest.mark.parametrize("size", [1, 3])
def test_blocks_made_anew_equal_blocks_kept(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vqshield.quantization.kernels.noisy._VALUES_A_BLOCK", 300)
    patches = noisy(noise_images(3, 3, 13, 11), size=size)
    assert patches.block < patches.count
    kept = patches.keep()
    assert torch.equal(points(patches), points(kept))
    index = torch.tensor([0, patches.count - 1, patches.block])
    expected = torch.stack([points(kept)[i, j] for i, j in enumerate(index.tolist())])
    assert torch.equal(patches.gather(index), expected)
    assert torch.equal(fit(patches, 5, 20, "kmeans++", 0.0), fit(kept, 5, 20, "kmeans++", 0.0))


@pytest.mark.parametrize("weights_from", ["clean", "noisy"])
def test_block_size_does_not_change_a_defense(weights_from: str, monkeypatch: pytest.MonkeyPatch) -> None:
    images, streams = noise_images(2, 3, 20, 19), torch.arange(2)
    defense = vq.SWRD(seed=1, weights_from=weights_from, backend="torch")
    whole = defense(images, streams=streams)
    monkeypatch.setattr("vqshield.quantization.kernels.noisy._VALUES_A_BLOCK", 700)
    assert torch.equal(defense(images, streams=streams), whole)


def test_unknown_backend_names_the_known_ones() -> None:
    with pytest.raises(
        ValueError, match=r"backend='metal' is unknown; choose one of auto, gpu, native, torch"
    ):
        vq.SWRD(backend="metal")
