"""The soft surrogate's gradient against finite differences of its formula, written out as loops in numpy."""

import math
import re

import numpy as np
import pytest
import torch
from conftest import noise_images
from torch import Tensor

import oracles
import vqshield as vq
from vqshield.quantization.noise import Draw, Stage
from vqshield.surrogates import Shielding, Soft
from vqshield.surrogates.soft import put_together

SEED, STREAM = 5, 3
STEP = 1e-6


class Smooth:
    """sum_j softmax_j(−‖p − c_j(x)‖²/T)·c_j(x) for every patch p of an image x, put together again.

    c_j(x) is the centre found at the first image, plus how far its treatment says that it has moved since.
    """

    def __init__(self, first: np.ndarray, defense: vq.Defense, soft: Soft) -> None:
        self.defense, self.soft = defense, soft
        self.size, self.sliding = defense.grid.size, isinstance(defense, vq.SWRD)
        patches = self.cut(first)
        images, streams = torch.from_numpy(first)[None], torch.tensor([STREAM])
        self.found = defense.codebook(images, streams=streams)[0].numpy()
        self.members = [oracles.nearest(patch, self.found) for patch in patches]
        self.before = self.moving(patches)
        self.omega = np.zeros_like(patches)
        if soft.noise == "drawn":
            drawn = Draw(SEED, streams).normals(Stage.ASSIGNMENT, 0, patches.size)
            self.omega = defense.tau * drawn.numpy().reshape(patches.shape)

    def padded(self, image: np.ndarray) -> np.ndarray:
        return image if self.sliding else oracles.pad(image, self.size, self.defense.grid.padding)

    def corners(self, image: np.ndarray) -> list[tuple[int, int]]:
        corners = oracles.sliding_corners if self.sliding else oracles.disjoint_corners
        return corners(*self.padded(image).shape[1:], self.size)

    def cut(self, image: np.ndarray) -> np.ndarray:
        return oracles.cut(self.padded(image), self.corners(image), self.size)

    def shares(self, patch: np.ndarray, centres: np.ndarray) -> list[float]:
        distances = [oracles.squared_distance(patch, centre) for centre in centres]
        weights = [math.exp((min(distances) - each) / self.soft.temperature) for each in distances]
        return [weight / math.fsum(weights) for weight in weights]

    def moving(self, patches: np.ndarray) -> np.ndarray:
        if self.soft.centres == "constant":
            return self.found
        if self.soft.centres == "means":
            moved = np.zeros_like(self.found)
            for number in range(len(self.found)):
                mine = [p for p, member in zip(patches, self.members, strict=True) if member == number]
                if mine:
                    moved[number] = sum(mine) / len(mine)
            return moved
        centres = self.found
        for _ in range(self.soft.rounds):
            shares = np.array([self.shares(patch, centres) for patch in patches])  # (n, k)
            centres = np.array([
                sum(share * patch for share, patch in zip(column, patches, strict=True)) / math.fsum(column)
                for column in shares.T
            ])  # fmt: skip
        return centres

    def __call__(self, image: np.ndarray) -> np.ndarray:
        patches = self.cut(image)
        centres = self.found + self.moving(patches) - self.before
        noisy = patches + self.omega
        mixed = np.array([
            sum(share * centre for share, centre in zip(self.shares(patch, centres), centres, strict=True))
            for patch in noisy
        ])  # fmt: skip
        shape = self.padded(image).shape
        if not self.sliding:
            whole = oracles.rebuild_disjoint(mixed, self.corners(image), shape, self.size)
            return whole[:, : image.shape[1], : image.shape[2]]
        windows = patches if self.defense.weights_from == "clean" else noisy
        return oracles.rebuild_sliding(
            windows, mixed, self.corners(image), shape, self.size, self.defense.beta
        )


def finite_differences(function, image: np.ndarray, weights: np.ndarray) -> np.ndarray:
    gradient = np.zeros_like(image)
    for place in np.ndindex(image.shape):
        ends = []
        for way in (1, -1):
            moved = image.copy()
            moved[place] += way * STEP
            ends.append(float((weights * function(moved)).sum()))
        gradient[place] = (ends[0] - ends[1]) / (2 * STEP)
    return gradient


def shielding(images: Tensor, defense: vq.Defense) -> Shielding:
    streams = torch.arange(len(images)) + STREAM
    return Shielding(images, defense(images.detach(), streams=streams), defense, streams)


def gradient_of(soft: Soft, images: Tensor, defense: vq.Defense, weights: Tensor) -> Tensor:
    images = images.detach().requires_grad_()
    (gradient,) = torch.autograd.grad((soft.attach(shielding(images, defense)) * weights).sum(), images)
    return gradient


DEFENSES = {
    "prd": vq.PRD(size=2, codes=3, sigma=0.02, tau=0.03, seed=SEED),
    "reflected prd": vq.PRD(size=3, codes=2, padding="reflect", seed=SEED),
    "randdisc": vq.RandDisc(codes=3, seed=SEED),
    "swrd": vq.SWRD(size=2, codes=3, beta=2.0, sigma=0.02, tau=0.03, seed=SEED),
    "swrd with steep weights": vq.SWRD(size=2, codes=3, beta=60.0, seed=SEED),
    "swrd with noisy weights": vq.SWRD(size=2, codes=3, beta=20.0, tau=0.05, weights_from="noisy", seed=SEED),
}


@pytest.mark.parametrize("noise", ["none", "drawn"])
@pytest.mark.parametrize("centres", ["constant", "means", "unrolled"])
@pytest.mark.parametrize("name", DEFENSES)
def test_its_gradient_is_that_of_the_formula(name: str, centres: str, noise: str) -> None:
    defense, soft = DEFENSES[name], Soft(temperature=0.3, centres=centres, rounds=2, noise=noise)
    image = noise_images(2, 4, 5, seed=1).double() * 0.8 + 0.1
    weights = noise_images(2, 4, 5, seed=2).double() - 0.5
    expected = finite_differences(Smooth(image.numpy(), defense, soft), image.numpy(), weights.numpy())
    found = gradient_of(soft, image[None], defense, weights[None])[0].numpy()
    assert np.abs(expected).max() > 0.005, "nothing to compare"
    np.testing.assert_allclose(found, expected, atol=1e-8)


@pytest.mark.parametrize("rounds", [1, 3, 6])
def test_every_unrolled_round_counts(rounds: int) -> None:
    defense, soft = DEFENSES["prd"], Soft(temperature=0.1, centres="unrolled", rounds=rounds)
    image, weights = noise_images(1, 4, 4, seed=3).double(), noise_images(1, 4, 4, seed=4).double()
    expected = finite_differences(Smooth(image.numpy(), defense, soft), image.numpy(), weights.numpy())
    found = gradient_of(soft, image[None], defense, weights[None])[0].numpy()
    np.testing.assert_allclose(found, expected, atol=1e-8)


@pytest.mark.parametrize("name", ["prd", "swrd", "swrd with steep weights"])
def test_cold_mixtures_are_the_nearest_centres(name: str) -> None:
    """T → 0 without noise in the assignment: the smooth image becomes the quantized one."""
    changed = {**DEFENSES[name].settings(), "tau": 0.0}
    defense = type(DEFENSES[name])(**changed, seed=SEED)
    given = shielding(noise_images(4, 3, 7, 8).double() * 0.8 + 0.1, defense)
    distances = [
        float(
            (Soft(temperature=t, centres="constant")._smooth(given).clamp(0, 1) - given.quantized).abs().max()
        )
        for t in (1.0, 0.01, 1e-6)
    ]
    assert distances[0] > distances[1] > distances[2]
    assert distances[2] < 1e-6


def test_cold_gradients_are_none_for_constant_centres_and_cluster_means_else() -> None:
    defense = vq.PRD(size=2, codes=3, sigma=0.0, tau=0.0, seed=SEED)
    images, weights = noise_images(1, 1, 6, 6).double(), noise_images(1, 1, 6, 6, seed=1).double()
    constant = gradient_of(Soft(temperature=1e-6, centres="constant"), images, defense, weights)
    assert float(constant.abs().max()) < 1e-9
    corners = oracles.disjoint_corners(6, 6, 2)
    patches, theirs = (oracles.cut(each[0].numpy(), corners, 2) for each in (images, weights))
    centres = defense.codebook(images, streams=torch.tensor([STREAM]))[0].numpy()
    labels = [oracles.nearest(patch, centres) for patch in patches]
    averaged = [
        np.mean([w for w, label in zip(theirs, labels, strict=True) if label == mine], axis=0)
        for mine in labels
    ]
    expected = oracles.rebuild_disjoint(np.array(averaged), corners, (1, 6, 6), 2)
    for centres_as in ("means", "unrolled"):
        soft = Soft(temperature=1e-6, centres=centres_as, rounds=1)
        found = gradient_of(soft, images, defense, weights)[0].numpy()
        np.testing.assert_allclose(found, expected, atol=1e-7)


@pytest.mark.parametrize("name", ["prd", "swrd"])
def test_hard_patches_are_put_together_as_the_defense_does(name: str) -> None:
    changed = {**DEFENSES[name].settings(), "tau": 0.0}
    defense = type(DEFENSES[name])(**changed, seed=SEED)
    images, streams = noise_images(3, 2, 5, 7).double(), torch.arange(3)
    centres = defense.codebook(images, streams=streams)
    padded = defense.grid.pad(images)
    patches = defense.grid.cut(padded, 0, defense.grid.count(5, 7))
    labels = torch.cdist(patches, centres).argmin(-1)
    hard = centres.gather(1, labels[..., None].expand_as(patches))
    whole = put_together(defense, hard, patches, patches, images)
    assert torch.allclose(whole, defense(images, streams=streams), atol=1e-9)


@pytest.mark.parametrize("centres", ["constant", "means", "unrolled"])
@pytest.mark.parametrize("temperature", [1e-6, 0.03, 1e6])
def test_equal_patches_and_empty_clusters_give_finite_gradients(centres: str, temperature: float) -> None:
    images = torch.zeros(3, 1, 6, 6)
    images[1], images[2, :, :3] = 1.0, 0.5
    for defense in (
        vq.PRD(size=2, codes=4, sigma=0.0, tau=0.0, seed=SEED),
        vq.SWRD(size=2, codes=4, beta=130_050.0, seed=SEED),
    ):
        soft = Soft(temperature=temperature, centres=centres)
        found = gradient_of(soft, images, defense, noise_images(3, 1, 6, 6))
        assert found.isfinite().all()


def test_noise_that_is_not_there_changes_nothing() -> None:
    defense = vq.SWRD(size=2, codes=3, tau=0.0, seed=SEED)
    images, weights = noise_images(2, 3, 6, 6), noise_images(2, 3, 6, 6, seed=1)
    gradients = [gradient_of(Soft(noise=noise), images, defense, weights) for noise in ("none", "drawn")]
    assert torch.equal(*gradients)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"temperature": 0}, "temperature=0 should be >= 1e-06"),
        ({"temperature": -0.1}, "temperature=-0.1"),
        ({"temperature": float("nan")}, "temperature=nan"),
        ({"temperature": "hot"}, "temperature='hot' should be a number, not str"),
        ({"centres": "medians"}, "centres='medians' is unknown; choose one of constant, means, unrolled"),
        ({"rounds": 0}, "rounds=0 should be >= 1"),
        ({"rounds": 1.5}, "rounds=1.5 should be a whole number"),
        ({"noise": "some"}, "noise='some' is unknown; choose one of drawn, none"),
    ],
)
def test_bad_settings_are_named(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        Soft(**settings)
