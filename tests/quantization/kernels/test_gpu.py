"""The GPU backend against the reference: on a GPU for real, elsewhere interpreted, on small images.

The interpreter must be chosen before Triton is imported, so those tests run in a process of their own.
"""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from conftest import noise_images
from torch import Tensor

import vqshield as vq
from vqshield.defenses import from_text
from vqshield.quantization import kernels as clustering
from vqshield.quantization.kernels.gpu import Gpu

CASES = Path(__file__).parent / "triton_cases.py"
GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="the package triton is not installed")
@pytest.mark.skipif(torch.cuda.is_available(), reason="the kernels run for real here")
def test_interpreted_kernels_agree_with_the_reference() -> None:
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    done = subprocess.run(
        [sys.executable, str(CASES)], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    parts = "cuda", "lloyd", "defenses", "other_calls", "strips"
    assert done.stdout.split("\n") == [*(f"{part} agree" for part in parts), ""]


def test_without_a_gpu_it_says_why() -> None:
    reason = Gpu().missing(torch.device("cpu"))
    assert reason is not None
    assert "CUDA" in reason or "not installed" in reason
    if not torch.cuda.is_available():
        with pytest.raises(ValueError, match="backend='gpu' cannot serve images on cpu"):
            vq.SWRD(backend="gpu")(noise_images(1, 3, 9, 9))


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="the package triton is not installed")
def test_the_workspace_is_what_it_says() -> None:
    from vqshield.quantization.kernels.triton.launch import Sizes, power_of_two

    sizes = Sizes.of(900, 25, 27)
    assert (sizes.rows, sizes.codes, sizes.dimensions) == (1024, 32, 32)
    assert sizes.bytes(patches=True) == 1024 * (4 * 32 + 12) + 2 * 4 * 32 * 32
    assert sizes.bytes(patches=False) == 1024 * 8 + 4 * 32 * 32
    assert Sizes.of(10, 3, 16).dimensions == 32, "the one behind the patch needs a place"
    assert [power_of_two(n) for n in (1, 2, 3, 4, 5, 1000)] == [1, 2, 4, 4, 8, 1024]


@GPU
@pytest.mark.parametrize(
    "defense", [vq.RandDisc(), vq.PRD(), vq.SWRD(), vq.SWRD(weights_from="noisy", beta=6502.5)]
)
def test_natural_images_agree_on_the_gpu(defense: vq.Defense, natural: Tensor) -> None:
    images, streams = natural.cuda(), torch.arange(64)
    pair = [type(defense)(**defense.settings(), seed=3, backend=name) for name in ("torch", "gpu")]
    codebooks = [one.codebook(images, streams=streams) for one in pair]
    equal = ((codebooks[0] - codebooks[1]).abs().amax((1, 2)) < 1e-4).double().mean()
    assert float(equal) >= 0.95
    given = [one.quantize(images, codebooks[0], streams=streams) for one in pair]
    assert float(((given[0] - given[1]).abs() > 1e-4).double().mean()) <= 1e-3


@GPU
def test_a_large_image_in_strips_is_the_same_in_every_run() -> None:
    images, streams = noise_images(2, 3, 150, 160).cuda(), torch.arange(2)
    defense = vq.SWRD(codes=9, seed=1, backend="gpu")
    first = defense(images, streams=streams)
    assert torch.equal(first, defense(images, streams=streams))
    assert torch.equal(first[:1], defense(images[:1], streams=streams[:1]))


def test_the_former_name_is_taken_for_the_backend() -> None:
    defense = from_text("swrd:codes=3,backend=triton", seed=0)
    assert isinstance(defense, vq.Quantizer)
    assert defense.backend == "gpu"
    assert clustering.backend_name("triton") == "gpu"


def test_auto_never_takes_the_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert clustering.get("auto", "cpu").name != "gpu"
