"""The compiled kernel against the reference over thousands of random defenses and images: none far apart."""

import math
import random
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

import vqshield as vq
from vqshield.data import sample
from vqshield.quantization.kernels.native import Native

MISSING = Native().missing(torch.device("cpu"))
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(MISSING is not None, reason=str(MISSING)),
]

PARTS, CASES = 2, 500  # a failing part says which case it was, and the others still run
ROUNDING = 1e-5  # of codebooks
# The kernel's noise is float32, so once in thousands of cases a patch equally near to two centres goes to the
# other one. Where all patches are alike but for faint noise, centres then move by some of that noise.
CHANCE_FLIPS = 1  # of so many cases in a part the codebooks may differ by more than rounding
FAR_APART = 1 / 255  # a grey level
SAME_PIXEL = 1e-3  # given one codebook; a beta of 130,050 multiplies rounding


@dataclass(frozen=True)
class Pair:
    """One defense twice, carried out by the kernel and by the reference, and images to compare them on."""

    native: vq.Defense
    reference: vq.Defense
    images: Tensor
    streams: Tensor

    def distances(self) -> tuple[float, float]:
        """How far apart the codebooks are (in units of the noisy range), and the pixels made from one."""
        streams, scale = self.streams, 1 + 7 * max(self.native.sigma, self.native.tau)
        expected = self.reference.codebook(self.images, streams=streams)
        found = self.native.codebook(self.images, streams=streams)
        outputs = [
            defense.quantize(self.images, expected, streams=streams)
            for defense in (self.native, self.reference)
        ]
        return (
            float((found - expected).abs().max()) / scale,
            float((outputs[0] - outputs[1]).abs().max()),
        )


def random_pair(rng: random.Random, natural: Tensor) -> Pair:
    size, channels = rng.choice((1, 2, 2, 3, 3, 4, 5)), rng.choice((1, 3, 3))
    height, width = rng.randint(2 * size, 28), rng.randint(2 * size, 28)
    images = random_images(rng, natural, (rng.randint(1, 3), channels, height, width))
    kind = rng.choice((vq.PRD, vq.SWRD)) if size > 1 else rng.choice((vq.RandDisc, vq.SWRD))
    patches = (height - size + 1) * (width - size + 1)
    if kind is not vq.SWRD:
        patches = math.ceil(height / size) * math.ceil(width / size)
    noise = rng.choice(("patch", "patch", "image", "shared"))
    sigma = random_scale(rng)
    settings: dict[str, object] = {
        "codes": rng.randint(1, min(patches, rng.choice((4, 30, 80)))),
        "sigma": sigma,
        "tau": sigma if noise == "shared" else random_scale(rng),
        "noise": noise,
        "iterations": rng.choice((1, 3, 20)),
        "init": rng.choice(("kmeans++", "random")),
        "tolerance": rng.choice((0.0, 0.0, 0.02)),
        "seed": rng.getrandbits(64),
    }
    if kind is not vq.RandDisc:
        settings["size"] = size
    if kind is vq.SWRD:
        settings["beta"] = rng.choice((0.0, 2.0, 100.0, 6502.5, 130050.0))
        settings["weights_from"] = rng.choice(("clean", "noisy")) if noise == "patch" else "noisy"
    if kind is vq.PRD:
        settings["padding"] = rng.choice(("zero", "reflect"))
    streams = torch.tensor([rng.getrandbits(63) for _ in images])
    return Pair(kind(backend="native", **settings), kind(backend="torch", **settings), images, streams)


def random_images(rng: random.Random, natural: Tensor, shape: tuple[int, int, int, int]) -> Tensor:
    batch, channels, height, width = shape
    generator = torch.Generator().manual_seed(rng.getrandbits(60))
    what = rng.choice(("natural", "natural", "uniform", "few", "constant"))
    if what == "natural":
        chosen = torch.randint(len(natural), (batch,), generator=generator)
        return natural[chosen, :channels, :height, :width].contiguous()
    if what == "few":
        return torch.randint(0, 4, shape, generator=generator) / 3
    if what == "constant":
        return torch.rand(batch, channels, 1, 1, generator=generator).expand(shape).contiguous()
    return torch.rand(shape, generator=generator)


def random_scale(rng: random.Random) -> float:
    return 0.0 if rng.random() < 0.25 else math.exp(rng.uniform(math.log(0.001), 0.0))


@pytest.mark.parametrize("part", range(PARTS))
def test_none_of_1000_random_cases_is_far_apart(part: int) -> None:
    threads, natural = torch.get_num_threads(), sample().floats()
    torch.set_num_threads(1)
    try:
        flips = 0
        for number in range(part * CASES, (part + 1) * CASES):
            pair = random_pair(random.Random(f"agreement {number}"), natural)
            codebooks, pixels = pair.distances()
            flips += codebooks > ROUNDING
            assert codebooks < FAR_APART, (number, pair.native)
            assert pixels < SAME_PIXEL, (number, pair.native)
        assert flips <= CHANCE_FLIPS
    finally:
        torch.set_num_threads(threads)
