"""The score function: each draw's gradient by its formula, and their mean by differences of mean logits."""

import re

import numpy as np
import pytest
import torch
from conftest import noise_images
from torch import Tensor

import oracles
import vqshield as vq
from vqshield.attacks import EOT
from vqshield.quantization.noise import Draw, Stage
from vqshield.surrogates import Score, Shielding

DRAWS = 60_000
ERRORS = 4.5  # standard errors; a few dozen values are compared, each beyond this once in 150 000 times
STEP = 0.01  # of central differences; what it bends the mean logits of these noises by is far below ERRORS

WEIGHTS = torch.tensor([[1.0, -2.0, 0.5, 3.0, -1.0, 0.7], [0.0, 1.0, -1.0, 2.0, 0.4, -3.0]]).double()
IMAGE = torch.tensor([[0.3, 0.45, 0.55], [0.7, 0.4, 0.6]]).double()[None, None]


def linear(images: Tensor) -> Tensor:
    return images.flatten(1) @ WEIGHTS.T


def quadratic(images: Tensor) -> Tensor:
    return linear((images - 0.5) ** 2 * 4 + images)


def score_gradients(classifier, defense: vq.Defense, chosen: int) -> Tensor:
    """The gradient of one logit in each of many draws, (draws, pixels)."""
    images = IMAGE.repeat(DRAWS, 1, 1, 1).requires_grad_()
    logits = vq.Defended(classifier, defense, surrogate="score")(images)
    return torch.autograd.grad(logits[:, chosen].sum(), images)[0].flatten(1)


def mean_and_error(values: Tensor) -> tuple[Tensor, Tensor]:
    return values.mean(0), values.std(0) / len(values) ** 0.5


@pytest.mark.parametrize(
    ("classifier", "defense"),
    [
        (linear, vq.RandDisc(codes=2, sigma=0.1, tau=0.1, seed=1)),
        (quadratic, vq.RandDisc(codes=3, sigma=0.1, tau=0.05, seed=2)),
        (linear, vq.PRD(size=2, codes=2, sigma=0.08, tau=0.1, seed=3)),
        (linear, vq.PRD(size=2, codes=2, sigma=0.08, tau=0.1, padding="reflect", seed=6)),
        (linear, vq.SWRD(size=2, codes=2, sigma=0.1, tau=0.1, weights_from="noisy", beta=10.0, seed=4)),
        (linear, vq.SWRD(size=2, codes=2, sigma=0.1, tau=0.1, weights_from="clean", beta=0.0, seed=5)),
    ],
    ids=[
        "randdisc",
        "randdisc, quadratic",
        "prd",
        "prd, mirrored",
        "swrd, noisy weights",
        "swrd, equal weights",
    ],
)
def test_its_mean_is_the_slope_of_the_mean_logits(classifier, defense: vq.Defense) -> None:
    mean, error = mean_and_error(score_gradients(classifier, defense, 0))
    for pixel in range(IMAGE.numel()):
        step = torch.zeros(IMAGE.numel()).double()
        step[pixel] = STEP
        ends = [
            classifier(defense.reseeded(77)((IMAGE + way * step.view_as(IMAGE)).repeat(DRAWS, 1, 1, 1)))[:, 0]
            for way in (1, -1)
        ]
        slope, its_error = mean_and_error((ends[0] - ends[1]) / (2 * STEP))
        assert abs(mean[pixel] - slope) < ERRORS * torch.hypot(error[pixel], its_error)


def test_with_one_centre_it_is_the_mean_over_the_patches() -> None:
    """The centre is then the mean of all noisy patches, and the slopes of its mean are known exactly."""
    mean, error = mean_and_error(
        score_gradients(linear, vq.RandDisc(codes=1, sigma=0.05, tau=0.1, seed=1), 1)
    )
    expected = WEIGHTS[1].mean().expand(6)
    assert bool(((mean - expected).abs() < ERRORS * error).all())
    assert float(error.max()) < 0.1, "too coarse to say anything"


@pytest.mark.parametrize(
    "defense",
    [
        vq.RandDisc(codes=3, sigma=0.03, tau=0.05, seed=9),
        vq.PRD(size=2, codes=2, sigma=0.03, tau=0.05, seed=9),
        vq.SWRD(size=2, codes=3, sigma=0.03, tau=0.05, weights_from="noisy", seed=9),
    ],
    ids=repr,
)
def test_a_draws_gradient_is_the_formula(defense: vq.Defense) -> None:
    """sum_c g_c·(z_c − b_c) · (epsilon/sigma² + omega/tau²), over all patches that hold the pixel."""
    images, streams = noise_images(2, 1, 4, 5).double().requires_grad_(), torch.tensor([4, 11])
    weights, pulled = noise_images(3, 20, seed=1).double(), noise_images(2, 3, seed=2).double()

    def classifier(batch: Tensor) -> Tensor:
        return batch.flatten(1) @ weights.T

    logits = vq.Defended(classifier, defense, surrogate="score")(images, streams=streams)
    (found,) = torch.autograd.grad((logits * pulled).sum(), images)
    size, sliding = defense.grid.size, isinstance(defense, vq.SWRD)
    height, width = (4, 5) if sliding else (-(-4 // size) * size, -(-5 // size) * size)
    corners = (oracles.sliding_corners if sliding else oracles.disjoint_corners)(height, width, size)
    for i in range(2):
        draw = Draw(9, streams[i : i + 1])
        shape, count = (len(corners), size, size), len(corners) * size**2
        epsilon, omega = (
            draw.normals(stage, 0, count).numpy().reshape(shape)
            for stage in (Stage.CODEBOOK, Stage.ASSIGNMENT)
        )
        score = np.zeros((height, width))
        for number, (y, x) in enumerate(corners):
            noise = 0.03 * epsilon[number] / 0.03**2 + 0.05 * omega[number] / 0.05**2
            score[y : y + size, x : x + size] += noise
        quantized = defense(images.detach()[i : i + 1], streams=streams[i : i + 1])
        with torch.no_grad():
            advantage = (classifier(quantized) - classifier(images[i : i + 1]))[0]
        expected = float((pulled[i] * advantage).sum()) * score[:4, :5]
        np.testing.assert_allclose(found[i, 0].numpy(), expected, rtol=1e-9, atol=1e-9)


def test_the_mean_of_logits_over_draws_has_the_mean_gradient() -> None:
    defense = vq.RandDisc(codes=2, sigma=0.1, tau=0.1, seed=1)
    model = EOT(vq.Defended(linear, defense, surrogate="score"), draws=500, average="logits")
    images = IMAGE.clone().requires_grad_()
    (together,) = torch.autograd.grad(model(images)[0, 0], images)
    copies = IMAGE.repeat(500, 1, 1, 1).requires_grad_()
    logits = vq.Defended(linear, defense.reseeded(1), surrogate="score")(copies)
    (singly,) = torch.autograd.grad(logits[:, 0].sum(), copies)
    assert torch.allclose(together[0], singly.mean(0), atol=1e-10)


@pytest.mark.parametrize(("sigma", "tau"), [(0.0, 0.1), (0.1, 0.0), (0.0, 0.0)])
def test_without_noise_it_is_refused_but_answers_are_given(sigma: float, tau: float) -> None:
    defense = vq.RandDisc(codes=2, sigma=sigma, tau=tau, seed=1)
    model = vq.Defended(linear, defense, surrogate="score")
    message = f"surrogate='score' needs sigma > 0 and tau > 0, not sigma={sigma:g}, tau={tau:g}"
    with pytest.raises(ValueError, match=re.escape(message)):
        model(IMAGE.clone().requires_grad_())
    assert model(IMAGE).shape == (1, 2)


def test_the_classifier_is_never_differentiated() -> None:
    """So it may be anything, a table or a decision tree."""

    def steps(images: Tensor) -> Tensor:
        return torch.from_numpy(np.floor(images.detach().numpy().reshape(len(images), -1)[:, :2] * 4))

    images, defense = noise_images(3, 1, 4, 4).requires_grad_(), vq.RandDisc(codes=2, seed=1)
    streams = torch.arange(3)
    given = Shielding(images, defense(images.detach(), streams=streams), defense, streams)
    (gradient,) = torch.autograd.grad(Score().logits(steps, given).sum(), images)
    assert gradient.isfinite().all()
    assert float(gradient.abs().max()) > 0
