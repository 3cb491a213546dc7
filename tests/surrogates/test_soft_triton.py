"""The soft surrogate's Triton kernels: on a GPU for real, elsewhere interpreted, on images of a few pixels.

The interpreter must be chosen before Triton is imported, so those tests run in a process of their own.
"""

import importlib.util
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from conftest import noise_images
from torch import Tensor

import vqshield as vq
from vqshield.surrogates import Shielding, Soft

CASES = Path(__file__).parent / "soft_triton_cases.py"
GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="the package triton is not installed")
@pytest.mark.skipif(torch.cuda.is_available(), reason="the kernels run for real here")
def test_interpreted_kernels_give_the_gradient_of_the_formula() -> None:
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    done = subprocess.run(
        [sys.executable, str(CASES)], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.split() == ["formula", "batches", "limits"]


def shielding(images: Tensor, defense: vq.Quantizer) -> Shielding:
    streams = torch.arange(len(images), device=images.device)
    centres = defense.codebook(images, streams=streams)
    return Shielding(images, images, defense, streams, centres)


def gradient(soft: Soft, given: Shielding, *, dtype: torch.dtype = torch.float32) -> Tensor:
    points = given.images.detach().to(dtype).requires_grad_()
    assert given.centres is not None
    given = replace(given, images=points, quantized=points.detach(), centres=given.centres.to(dtype))
    weights = noise_images(*points.shape[1:], seed=1).to(points) - 0.5
    return torch.autograd.grad((soft.attach(given) * weights).sum(), points)[0]


@GPU
@pytest.mark.parametrize("noise", ["none", "drawn"])
@pytest.mark.parametrize("centres", ["constant", "means", "unrolled"])
@pytest.mark.parametrize(
    "defense",
    [
        vq.RandDisc(seed=1),
        vq.PRD(seed=1),
        *(vq.SWRD(codes=codes, seed=1) for codes in (10, 25, 35, 90, 256)),  # every size of a codebook
    ],
)
def test_natural_images_have_the_gradient_of_the_formula(
    defense: vq.Quantizer, centres: str, noise: str, natural: Tensor
) -> None:
    soft, given = Soft(centres=centres, noise=noise), shielding(natural[:8].cuda(), defense)
    exact = gradient(soft, given, dtype=torch.float64)
    found = gradient(soft, given)
    assert float((found - exact).abs().max() / exact.abs().max()) < 1e-5
    assert torch.equal(found, gradient(soft, given)), "another run"
    alone = Shielding(*(each[:1] for each in (given.images, given.images)), defense, given.streams[:1])
    assert given.centres is not None
    assert torch.equal(found[:1], gradient(soft, replace(alone, centres=given.centres[:1]))), "alone"


@GPU
def test_large_images_take_little_memory() -> None:
    images = noise_images(64, 3, 328, 328).cuda()
    given = shielding(images, vq.SWRD(codes=30, init="random", iterations=1, seed=1))
    torch.cuda.reset_peak_memory_stats()
    assert gradient(Soft(), given).isfinite().all()
    assert torch.cuda.max_memory_allocated() < 4 * 2**30
