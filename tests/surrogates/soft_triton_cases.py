"""Run by test_soft_triton.py with TRITON_INTERPRET=1: the soft kernels against autograd of the formula."""

import itertools
from dataclasses import replace

import pytest
import torch
from torch import Tensor

import vqshield as vq
from vqshield.core.errors import InvalidInputError
from vqshield.data import sample
from vqshield.quantization.kernels.triton import soft as kernels
from vqshield.quantization.noise import Draw
from vqshield.quantization.patches import Disjoint, Sliding
from vqshield.surrogates import Shielding, Soft

SEED, FIRST = 2**63 + 5, 3
PHOTOGRAPHS = sample(2).floats()
CASES = (
    ("randdisc", "unrolled", "drawn"),
    ("prd", "constant", "none"),
    ("prd", "means", "drawn"),
    ("reflected prd", "means", "none"),
    ("swrd", "constant", "drawn"),
    ("swrd", "means", "none"),
    ("swrd", "unrolled", "none"),
    ("noisy weights", "means", "drawn"),
    ("noise on the image", "means", "drawn"),
)


def defense_of(kind: str, size: int) -> vq.Quantizer:
    common = {"codes": 4, "tau": 0.05, "seed": SEED}
    if kind == "randdisc":
        return vq.RandDisc(**common)
    if "prd" in kind:
        return vq.PRD(size=size, padding="reflect" if kind == "reflected prd" else "zero", **common)
    noise = "image" if kind == "noise on the image" else "patch"
    return vq.SWRD(
        size=size, beta=5.0, noise=noise, weights_from="clean" if kind == "swrd" else "noisy", **common
    )


def photographs(count: int, channels: int, height: int, width: int) -> Tensor:
    return PHOTOGRAPHS[:count, :channels, 4 : 4 + height, 3 : 3 + width].contiguous()


def gradients(
    soft: Soft, defense: vq.Quantizer, images: Tensor, *, dtype: torch.dtype = torch.float32
) -> Tensor:
    """The kernel's in float32, the formula's in float64, of one and the same codebook and weights."""
    backend = "gpu" if dtype == torch.float32 else "torch"
    defense.backend = "torch"  # its codebook is not what is tried here
    streams = torch.arange(len(images)) + FIRST
    centres = defense.codebook(images, streams=streams).to(dtype)
    defense.backend = backend
    points = images.to(dtype).requires_grad_()
    attached = soft.attach(Shielding(points, points.detach(), defense, streams, centres))
    assert ("Softened" in type(attached.grad_fn).__name__) == (backend == "gpu")
    # Weights that follow from the pixel alone, so that an image has the same ones in every batch.
    weights = torch.linspace(0, 40, images[0].numel(), dtype=torch.float64).sin().view(images[0].shape)
    return torch.autograd.grad((attached * weights.to(dtype)).sum(), points)[0]


def formula() -> None:
    shapes = itertools.cycle((((7, 6), 2, 1), ((4, 7), 3, 3), ((5, 5), 2, 3)))
    for kind, centres, noise in CASES:
        (height, width), size, channels = next(shapes)
        soft = Soft(temperature=0.1, centres=centres, noise=noise, rounds=2 if kind == "swrd" else 1)
        compare(soft, defense_of(kind, size), photographs(1, channels, height, width))


def compare(soft: Soft, defense: vq.Quantizer, images: Tensor) -> Tensor:
    exact = gradients(soft, defense, images, dtype=torch.float64)
    assert float(exact.abs().max()) > 0.01, "nothing to compare"
    found = gradients(soft, defense, images)
    far = float((found - exact).abs().max() / exact.abs().max())
    assert far < 1e-5, (soft, defense, images.shape, far)
    return found


def batches() -> None:
    kernels.TUNING = replace(kernels.TUNING, pull_rows=16)  # several blocks a strip
    soft, images, defense = Soft(noise="drawn"), photographs(2, 1, 7, 7), defense_of("swrd", 2)
    together = compare(soft, defense, images)
    defense.memory = 1  # one image after the other
    assert torch.equal(together, gradients(soft, defense, images))


def limits() -> None:
    """Empty clusters and temperatures at both ends; a slope that is no number; what does not fit."""
    images = torch.zeros(2, 1, 4, 4)
    images[1, :, :2] = 0.5
    for temperature, beta, centres in ((1e-6, 130_050.0, "unrolled"), (1e6, 0.0, "means")):
        defense = vq.SWRD(size=2, codes=4, beta=beta, seed=SEED)
        soft = Soft(temperature=temperature, centres=centres, rounds=1)
        assert gradients(soft, defense, images).isfinite().all()
    defense = vq.PRD(size=2, codes=4, seed=SEED)
    recipe, draw, books = defense.recipe(), Draw(SEED, torch.arange(2)), torch.zeros(2, 4, 4)

    def ask(centres: Tensor = books, slopes: Tensor = images) -> Tensor:
        return kernels.soft_gradient(
            images, images, centres, slopes, recipe, draw, temperature=0.1, means=True
        )

    assert ask(slopes=images * torch.nan).isnan().any()
    for changes, message in (
        ({"slopes": images[:1]}, "slopes of shape"),
        ({"centres": books[..., :3]}, "centres of shape"),
        ({"centres": torch.zeros(2, 2048, 4)}, "should have k·d at most"),
    ):
        with pytest.raises(InvalidInputError, match=message):
            ask(**changes)
    for grid in (Sliding(3), Disjoint(3)):
        assert kernels.serves(grid, 3, 512)
        assert not kernels.serves(grid, 3, 513)


def main() -> None:
    kernels._SHORT = 32  # several strips a small image
    kernels.TUNING = replace(kernels.TUNING, mix_rows=32, pull_rows=32, pixels=64)
    for part in (formula, batches, limits):
        part()
        print(part.__name__, flush=True)


if __name__ == "__main__":
    main()
