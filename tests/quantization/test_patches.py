"""Blending windows: the same image as rebuilding from centres and labels, and differentiable besides."""

import numpy as np
import pytest
import torch
from conftest import noise_images
from hypothesis import given
from hypothesis import strategies as st

import oracles
from vqshield.quantization.patches import Sliding


@given(
    size=st.integers(1, 4),
    height=st.integers(4, 9),
    width=st.integers(4, 9),
    channels=st.integers(1, 3),
    beta=st.sampled_from([0.0, 2.0, 130_050.0]),
    seed=st.integers(0, 99),
)
def test_blending_hard_windows_is_rebuilding_them(size, height, width, channels, beta, seed) -> None:
    grid, codes = Sliding(size), 5
    count, values = grid.count(height, width), channels * size**2
    centres = noise_images(2, codes, values, seed=seed).double()
    labels = (noise_images(2, count, seed=seed + 1) * codes).long()
    similarity = -beta * noise_images(2, count, seed=seed + 2).double()
    windows = centres.gather(1, labels[..., None].expand(-1, -1, values))
    blended = grid.blend(windows, similarity, height, width)
    rebuilt = grid.rebuild(centres, labels, similarity, height, width)
    assert blended.shape == (2, channels, height, width)
    assert torch.allclose(blended, rebuilt, rtol=0, atol=1e-12)


@pytest.mark.parametrize("beta", [0.0, 3.0, 5000.0])
def test_blending_is_the_papers_weighted_mean(beta: float) -> None:
    patches, quantized = noise_images(1, 20, 8).double(), noise_images(1, 20, 8, seed=1).double()
    similarity = -beta * (quantized - patches).square().sum(-1)
    found = Sliding(2).blend(quantized, similarity, 5, 6)[0]
    corners = oracles.sliding_corners(5, 6, 2)
    expected = oracles.rebuild_sliding(patches[0].numpy(), quantized[0].numpy(), corners, (2, 5, 6), 2, beta)
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-12)


def test_blending_is_differentiable_in_windows_and_similarity() -> None:
    windows = noise_images(2, 6, 4).double().requires_grad_()
    similarity = (-2 * noise_images(2, 6, seed=1).double()).requires_grad_()
    assert torch.autograd.gradcheck(lambda w, s: Sliding(2).blend(w, s, 3, 4), (windows, similarity))


def test_steep_weights_blend_without_overflow_in_single_precision() -> None:
    windows = noise_images(1, 16, 12).requires_grad_()
    similarity = (-130_050 * 12 * noise_images(1, 16, seed=1)).requires_grad_()
    blended = Sliding(2).blend(windows, similarity, 5, 5)
    assert blended.isfinite().all()
    for gradient in torch.autograd.grad(blended.sum(), (windows, similarity)):
        assert gradient.isfinite().all()
