"""The fast code against the paper's algorithms written out as loops."""

import numpy as np
import pytest
import torch
from conftest import noise_images
from torch import Tensor

import oracles
import vqshield as vq
from vqshield.quantization.noise import Draw, Stage

SEED = 5
EXACT = {"seed": SEED, "backend": "torch"}  # the reference; faster backends are checked against it


def literal(image: Tensor, defense: vq.Defense, stream: int) -> tuple[np.ndarray, np.ndarray]:
    """Codebook and output of Algorithm 1 (pRD) or 2 (swRD)."""
    options = defense.settings()
    s, k, sigma, tau = options.get("size", 1), options["codes"], options["sigma"], options["tau"]
    original = image.double().numpy()
    h, w = original.shape[1:]
    sliding = isinstance(defense, vq.SWRD)
    padded = original if sliding else oracles.pad(original, s, options.get("padding", "zero"))
    corners = (oracles.sliding_corners if sliding else oracles.disjoint_corners)(*padded.shape[1:], s)
    patches = oracles.cut(padded, corners, s)
    n, d = patches.shape
    bits = oracles.grid_bits(d, max(sigma, tau))

    draw = Draw(SEED, torch.tensor([stream]))
    eps = draw.normals(Stage.CODEBOOK, 0, n * d).numpy().reshape(n, d) * sigma
    omega = draw.normals(Stage.ASSIGNMENT, 0, n * d).numpy().reshape(n, d) * tau
    words = draw.words(Stage.INIT, 0, k)[0].numpy()

    points = oracles.patches_on_grid(patches + eps, bits)
    start = {"kmeans++": oracles.kmeans_plus_plus, "random": oracles.random_distinct}[options["init"]]
    centres = oracles.lloyd(points, start(points, k, words), options["iterations"], bits)
    noisy = oracles.patches_on_grid(patches + omega, bits)
    quantized = np.array([centres[oracles.nearest(p, centres)] for p in noisy])
    if sliding:
        compared = patches if options["weights_from"] == "clean" else noisy
        output = oracles.rebuild_sliding(compared, quantized, corners, padded.shape, s, options["beta"])
    else:
        output = oracles.rebuild_disjoint(quantized, corners, padded.shape, s)[:, :h, :w]
    return centres, np.clip(output, 0, 1)


def assert_agrees(image: Tensor, defense: vq.Defense, stream: int = 3) -> None:
    streams = torch.tensor([stream])
    centres, output = literal(image, defense, stream)
    np.testing.assert_allclose(defense.codebook(image[None], streams=streams)[0].numpy(), centres, atol=1e-5)
    np.testing.assert_allclose(defense(image[None], streams=streams)[0].numpy(), output, atol=1e-5)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("size", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("padding", ["zero", "reflect"])
def test_prd_on_odd_sizes(channels: int, size: int, padding: str) -> None:
    image = noise_images(channels, 31, 33)
    assert_agrees(image, vq.PRD(size=size, codes=4, iterations=4, padding=padding, **EXACT))


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("size", [1, 2, 3, 4, 5])
def test_swrd_on_small_odd_images(channels: int, size: int) -> None:
    image = noise_images(channels, 11, 14)
    assert_agrees(image, vq.SWRD(size=size, codes=5, iterations=5, **EXACT))


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 5])
def test_swrd_on_an_odd_image_of_cifar_scale(size: int) -> None:
    assert_agrees(noise_images(3, 31, 33), vq.SWRD(size=size, codes=4, iterations=3, **EXACT))


@pytest.mark.parametrize("beta", [0.0, 2.0, 5.0, 6502.5, 130_050.0])
@pytest.mark.parametrize("weights_from", ["clean", "noisy"])
def test_swrd_weights_for_every_beta(beta: float, weights_from: str, natural: Tensor) -> None:
    image = natural[0, :, 8:22, 9:22]
    assert_agrees(image, vq.SWRD(size=3, codes=6, beta=beta, weights_from=weights_from, **EXACT))


@pytest.mark.slow
@pytest.mark.parametrize("init", ["kmeans++", "random"])
def test_natural_images_with_the_paper_settings(init: str, natural: Tensor) -> None:
    for index in (0, 7):
        assert_agrees(natural[index], vq.PRD.preset("cifar10", init=init, **EXACT))
        assert_agrees(natural[index], vq.RandDisc(codes=5, init=init, **EXACT))
    assert_agrees(natural[3], vq.SWRD.preset("cifar10", iterations=4, init=init, **EXACT))


@pytest.mark.parametrize("defense", [vq.RandDisc, vq.PRD, vq.SWRD])
@pytest.mark.parametrize("kind", ["constant", "black", "white", "two levels", "checkerboard", "ramp"])
def test_ties_and_constant_images_without_noise(defense: type[vq.Defense], kind: str) -> None:
    rows, columns = torch.meshgrid(torch.arange(9), torch.arange(10), indexing="ij")
    image = {
        "constant": torch.full((9, 10), 0.3),
        "black": torch.zeros(9, 10),
        "white": torch.ones(9, 10),
        "two levels": (columns > 4).float() / 2,
        "checkerboard": ((rows + columns) % 2).float(),
        "ramp": columns.float() / 8 % 1,  # multiples of 1/8: equidistant centres are exact ties
    }[kind]
    for init in ("kmeans++", "random"):
        assert_agrees(image[None], defense(codes=4, sigma=0.0, tau=0.0, init=init, **EXACT))


@pytest.mark.parametrize("defense", [vq.RandDisc, vq.PRD, vq.SWRD])
def test_float64_images_agree_too(defense: type[vq.Defense]) -> None:
    assert_agrees(noise_images(1, 8, 9).double() ** 2, defense(codes=5, **EXACT))


@pytest.mark.parametrize("noise", [0.25, 0.5, 1.0])
def test_large_noise_agrees_and_stays_within_range(noise: float) -> None:
    assert_agrees(noise_images(3, 9, 8), vq.SWRD(size=2, codes=4, sigma=noise, tau=noise, **EXACT))
