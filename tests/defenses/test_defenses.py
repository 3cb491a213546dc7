import inspect
import os
import subprocess
import sys

import pytest
import torch
from conftest import noise_images
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import vqshield as vq
from vqshield.defenses import DefenseSettings, create, defense_class, known_settings

SHARED = {"codes": 9, "sigma": 0.02, "tau": 0.03, "iterations": 7, "seed": 21}


@pytest.mark.parametrize("init", ["kmeans++", "random"])
@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 13, 9)])
def test_randdisc_is_either_quantizer_with_single_pixels(init: str, shape: tuple[int, ...]) -> None:
    images, streams = noise_images(5, *shape), torch.arange(5)
    family = [vq.RandDisc(init=init, **SHARED), vq.PRD(size=1, init=init, **SHARED)]
    family += [vq.SWRD(size=1, init=init, beta=beta, **SHARED) for beta in (0.0, 2.0, 130_050.0)]
    outputs = [defense(images, streams=streams) for defense in family]
    for other in outputs[1:]:
        assert float((other - outputs[0]).abs().max()) <= 1e-6


@given(
    size=st.integers(1, 5),
    height=st.integers(5, 13),
    width=st.integers(5, 13),
    codes=st.integers(1, 4),
    channels=st.sampled_from([1, 3, 4]),
    padding=st.sampled_from(["zero", "reflect"]),
)
def test_a_prd_output_holds_at_most_k_different_patches(
    size, height, width, codes, channels, padding
) -> None:
    defense = vq.PRD(size=size, codes=codes, padding=padding, seed=1)
    if codes > defense.grid.count(height, width):
        return
    output = defense(noise_images(1, channels, height, width))
    whole = output[:, :, : height // size * size, : width // size * size]
    patches = torch.nn.functional.unfold(whole, size, stride=size)[0].T
    assert len(torch.unique(patches, dim=0)) <= codes


@given(size=st.integers(1, 4), seed=st.integers(0, 99), beta=st.sampled_from([0.0, 2.0, 6502.5]))
def test_a_swrd_pixel_lies_between_the_centres_values(size: int, seed: int, beta: float) -> None:
    images = noise_images(1, 3, 9, 8, seed=seed)
    defense, streams = vq.SWRD(size=size, codes=3, beta=beta, seed=seed), torch.tensor([0])
    centres = defense.codebook(images, streams=streams).view(3, 3, -1)
    output = defense(images, streams=streams)[0]
    for channel in range(3):
        low, high = centres[:, channel].min().clamp(0, 1), centres[:, channel].max().clamp(0, 1)
        assert float(output[channel].min()) >= float(low) - 1e-6
        assert float(output[channel].max()) <= float(high) + 1e-6


def test_quantize_takes_any_number_of_given_centres() -> None:
    images = torch.tensor([0.1, 0.4, 0.6, 0.9]).view(1, 1, 2, 2)
    centres = torch.tensor([0.0, 0.5, 1.0]).view(1, 3, 1)
    output = vq.RandDisc(codes=1, sigma=0.0, tau=0.0).quantize(images, centres)
    assert output.flatten().tolist() == [0.0, 0.5, 0.5, 1.0]


def test_quantize_returns_given_centres_as_they_are() -> None:
    third = torch.tensor([1 / 3, 2 / 3]).view(1, 2, 1)  # not on the exact grid: must come back unrounded
    output = vq.RandDisc(codes=1, tau=0.0).quantize(torch.tensor([0.3, 0.7]).view(1, 1, 1, 2), third)
    assert output.flatten().tolist() == third.flatten().tolist()


def test_patches_are_channel_major_as_unfold_gives_them() -> None:
    images = noise_images(2, 3, 7, 8)
    for defense, stride in ((vq.SWRD(size=3), 1), (vq.PRD(size=2), 2)):
        padded = defense.grid.pad(images)
        expected = torch.nn.functional.unfold(padded, defense.grid.size, stride=stride).transpose(1, 2)
        count = defense.grid.count(7, 8)
        assert torch.equal(defense.grid.cut(padded, 0, count), expected)
        assert torch.equal(defense.grid.cut(padded, 2, 5), expected[:, 2:5])


def test_noise_of_both_stages_has_its_own_scale(natural: Tensor) -> None:
    images = torch.full((1, 1, 64, 64), 0.5)
    spread = vq.RandDisc(codes=4096, sigma=0.03, tau=0.0, init="random", iterations=1, seed=1).codebook(
        images
    )
    assert float(spread.std()) == pytest.approx(0.03, rel=0.05)
    assert float(spread.mean()) == pytest.approx(0.5, abs=0.002)
    centres = torch.tensor([0.5, 0.53]).view(1, 2, 1)
    moved = vq.RandDisc(codes=1, sigma=0.0, tau=0.015, seed=1).quantize(images, centres)
    share = float((moved > 0.51).float().mean())  # P(omega > 0.015) = P(z > 1) = 0.1587
    assert share == pytest.approx(0.1587, abs=4 * (0.1587 * 0.8413 / 4096) ** 0.5)


PEAK_MEMORY = """
import os, resource, torch, vqshield as vq
def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
for defense, shape in {cases}:
    child = os.fork()  # every one with a peak of its own
    if child == 0:
        images = torch.rand(shape)
        vq.PRD(codes=2, iterations=1)(images[:1, :, :8, :8])
        before = peak()
        getattr(vq, defense)(iterations=1)(images)
        print(peak() - before, flush=True)
        os._exit(0)
    os.waitpid(child, 0)
"""
MEMORY = [
    ("PRD", (10_000, 3, 32, 32), 117 + 200),
    ("SWRD", (1, 3, 328, 328), 400),
    ("SWRD", (1, 3, 900, 900), 1024),
]
"""A defense, the shape of the images, and MiB; 117 of them are the large batch's output."""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_memory_stays_within_the_budget() -> None:
    code = PEAK_MEMORY.format(cases=[(defense, shape) for defense, shape, _ in MEMORY])
    printed = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    peaks = [float(line) for line in printed.stdout.split()]
    assert len(peaks) == len(MEMORY)
    for peak, (defense, shape, megabytes) in zip(peaks, MEMORY, strict=True):
        assert peak < megabytes, (defense, shape)


def test_known_settings_are_the_constructor_arguments() -> None:
    assert list(known_settings("swrd"))[:3] == ["size", "codes", "beta"]
    assert known_settings("swrd")["codes"] == 25
    assert "size" not in known_settings("randdisc")
    for name in vq.list_defenses():
        create(name, **known_settings(name))


def test_the_typed_settings_are_those_of_all_quantizers() -> None:
    """What an editor completes in vq.defend(...) exists, and nothing that exists is missing."""
    known = {key for name in vq.list_defenses() for key in known_settings(name)}
    assert set(DefenseSettings.__annotations__) == known - {"surrogate"}  # defend has one for the model


@pytest.mark.parametrize("name", [*vq.list_defenses(), "gaussian"])
def test_no_constructor_hides_its_settings(name: str) -> None:
    for parameter in inspect.signature(defense_class(name)).parameters.values():
        assert parameter.kind is parameter.KEYWORD_ONLY


def test_repr_shows_settings_and_only_a_given_seed() -> None:
    assert "beta=2.0" in repr(vq.SWRD())
    assert "seed" not in repr(vq.SWRD())
    assert "seed=7" in repr(vq.SWRD(seed=7))
