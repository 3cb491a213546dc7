"""What every registered defense promises, on every registered backend and every device that is here."""

import pytest
import torch
from conftest import noise_images
from torch import Tensor

import vqshield as vq
from vqshield.core.checks import NARROW_DTYPES
from vqshield.defenses import create
from vqshield.defenses.quantizer import NOISES
from vqshield.quantization.kernels import get, list_backends

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
SHAPES = [(3, 32, 32), (1, 28, 28), (3, 31, 33), (1, 7, 9), (2, 12, 5)]


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(params=list_backends())
def backend(request: pytest.FixtureRequest, device: str) -> str:
    """Every backend on every device that it serves."""
    try:
        get(request.param, device)
    except ValueError as reason:
        pytest.skip(str(reason))
    return request.param


@pytest.fixture(params=NOISES)
def noise(request: pytest.FixtureRequest) -> str:
    """Where the noise is added."""
    return request.param


def make(name: str, backend: str, **settings: object) -> vq.Defense:
    return create(name, **{"codes": 6, "seed": 9, "backend": backend, **settings})


@pytest.mark.parametrize("shape", SHAPES)
def test_output_has_the_shape_and_range_of_images(defense_name, backend, device, shape) -> None:
    images = noise_images(4, *shape).to(device)
    output = make(defense_name, backend)(images)
    assert (output.shape, output.dtype, output.device) == (images.shape, images.dtype, images.device)
    assert 0 <= float(output.min()) <= float(output.max()) <= 1


@pytest.mark.parametrize("shape", SHAPES)
def test_an_image_is_bit_equal_alone_in_a_batch_and_in_any_order(
    defense_name, backend, device, shape
) -> None:
    images, streams = noise_images(64, *shape).to(device), torch.arange(64) * 7919 - 1000
    defense = make(defense_name, backend)
    together = defense(images, streams=streams)
    assert torch.equal(together, defense(images, streams=streams)), "a rerun differs"
    for i in (0, 1, 31, 63):
        assert torch.equal(defense(images[i : i + 1], streams=streams[i : i + 1])[0], together[i])
    order = torch.randperm(64, generator=torch.Generator().manual_seed(1))
    assert torch.equal(defense(images[order], streams=streams[order]), together[order])
    for size in (3, 17):
        parts = [defense(a, streams=b) for a, b in zip(images.split(size), streams.split(size), strict=True)]
        assert torch.equal(torch.cat(parts), together)


def test_natural_images_are_bit_equal_alone_and_in_a_batch(
    defense_name, backend, device, noise, natural
) -> None:
    images, streams = natural.to(device), torch.arange(64)
    defense = create(defense_name, seed=2, backend=backend, noise=noise)
    together = defense(images, streams=streams)
    for i in range(0, 64, 9):
        assert torch.equal(defense(images[i : i + 1], streams=streams[i : i + 1])[0], together[i])


def test_the_number_of_threads_changes_nothing(defense_name, backend, device, natural) -> None:
    defense, streams = make(defense_name, backend, codes=25), torch.arange(16)
    outputs, before = [], torch.get_num_threads()
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            outputs.append(defense(natural[:16].to(device), streams=streams))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(outputs[0], outputs[1])
    assert torch.equal(outputs[0], outputs[2])


def test_a_small_memory_budget_changes_nothing(defense_name, backend, device, noise) -> None:
    images, streams = noise_images(5, 3, 40, 37).to(device), torch.arange(5)
    roomy = make(defense_name, backend, noise=noise)(images, streams=streams)
    tight = make(defense_name, backend, noise=noise, memory=1000)(images, streams=streams)
    assert torch.equal(roomy, tight)


@pytest.mark.skipif(len(DEVICES) == 1, reason="no CUDA device here")
def test_cpu_and_gpu_agree(defense_name, natural) -> None:
    defense, streams = create(defense_name, seed=2, backend="torch"), torch.arange(64)
    on_cpu, on_gpu = defense(natural, streams=streams), defense(natural.cuda(), streams=streams).cpu()
    assert float((on_cpu != on_gpu).float().mean()) < 1e-3
    assert float(((on_cpu - on_gpu).abs() > 1e-5).float().mean()) < 1e-3


def test_the_global_generator_is_neither_read_nor_advanced(defense_name, backend, device, noise) -> None:
    images = noise_images(2, 3, 16, 16).to(device)
    defense = make(defense_name, backend, noise=noise)
    torch.manual_seed(0)
    before, first = torch.get_rng_state(), defense(images, streams=torch.arange(2))
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(1)
    assert torch.equal(defense(images, streams=torch.arange(2)), first)


def test_noise_stays_on_in_eval(defense_name, backend, device, noise) -> None:
    images = noise_images(1, 3, 16, 16).to(device)
    defense = make(defense_name, backend, noise=noise).eval()
    assert not torch.equal(defense(images), defense(images))


def test_default_constructed_defenses_differ_and_so_do_their_calls(defense_name) -> None:
    images = noise_images(1, 3, 16, 16)
    one, other = create(defense_name), create(defense_name)
    assert one.seed != other.seed
    assert not torch.equal(one(images), other(images))
    assert not torch.equal(one(images), one(images))


def test_a_given_seed_repeats_the_whole_sequence_of_calls(defense_name, backend, device, noise) -> None:
    images = noise_images(3, 3, 16, 16).to(device)
    runs = [
        [defense(images), defense(images)]
        for defense in (make(defense_name, backend, noise=noise) for _ in range(2))
    ]
    assert torch.equal(runs[0][0], runs[1][0])
    assert torch.equal(runs[0][1], runs[1][1])
    assert not torch.equal(runs[0][0], runs[0][1])
    explicit = make(defense_name, backend, noise=noise)(images, streams=torch.arange(3, 6))
    assert torch.equal(runs[0][1], explicit)


def test_codebook_then_quantize_is_the_defense(defense_name, backend, device, noise, natural) -> None:
    defense, streams = make(defense_name, backend, noise=noise), torch.arange(8)
    centres = defense.codebook(natural[:8].to(device), streams=streams)
    size = defense.grid.size
    assert centres.shape == (8, 6, 3 * size * size)
    assert torch.equal(
        defense.quantize(natural[:8].to(device), centres, streams=streams),
        defense(natural[:8].to(device), streams=streams),
    )


def test_float64_images_give_the_same_as_float32(defense_name, backend, device, noise, natural) -> None:
    defense, streams = make(defense_name, backend, noise=noise), torch.arange(8)
    wide = defense(natural[:8].to(device).double(), streams=streams)
    assert wide.dtype == torch.float64
    assert float((wide - defense(natural[:8].to(device), streams=streams)).abs().max()) < 1e-6


def test_autocast_does_not_reach_into_the_defense(defense_name, backend, device, noise, natural) -> None:
    defense, streams = make(defense_name, backend, noise=noise), torch.arange(8)
    with torch.autocast(device, dtype=torch.bfloat16):
        output = defense(natural[:8].to(device), streams=streams)
    assert torch.equal(output, defense(natural[:8].to(device), streams=streams))


def test_memory_layout_changes_nothing(defense_name, backend, device, noise, natural) -> None:
    defense, streams = make(defense_name, backend, noise=noise), torch.arange(8)
    plain = defense(natural[:8].to(device), streams=streams)
    assert torch.equal(
        defense(natural[:8].to(device).contiguous(memory_format=torch.channels_last), streams=streams), plain
    )
    flipped = natural[:8].to(device).transpose(2, 3).contiguous().transpose(2, 3)
    assert torch.equal(defense(flipped, streams=streams), plain)


@pytest.mark.parametrize("dtype", NARROW_DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES)
def test_bytes_and_halves_give_the_bits_that_their_pixels_do(
    defense_name, backend, device, shape, dtype
) -> None:
    wide = noise_images(3, *shape).to(device)
    images = (wide * 255).round().to(dtype) if dtype == torch.uint8 else wide.to(dtype)
    pixels = images.float() / 255 if dtype == torch.uint8 else images.float()
    defense, streams = make(defense_name, backend), torch.arange(3)
    expected = defense(pixels, streams=streams)
    expected = ((expected * 255).round() if dtype == torch.uint8 else expected).to(dtype)
    layouts = [images, images.contiguous(memory_format=torch.channels_last)]
    layouts += [images.transpose(2, 3).contiguous().transpose(2, 3), images.repeat(1, 2, 1, 1)[:, : shape[0]]]
    for each in layouts:
        assert torch.equal(defense(each, streams=streams), expected)
    assert torch.equal(defense(images[1], streams=streams[1:2]), expected[1])
    assert defense(images[:0]).dtype == dtype


def test_an_empty_batch_gives_an_empty_batch(defense_name, backend, device, noise) -> None:
    images = torch.empty(0, 3, 16, 16, device=device)
    assert make(defense_name, backend, noise=noise)(images).shape == (0, 3, 16, 16)


def test_the_input_is_left_as_it_was(defense_name, backend, device, noise) -> None:
    images = noise_images(2, 3, 15, 17).to(device)
    before = images.clone()
    make(defense_name, backend, noise=noise)(images)
    assert torch.equal(images, before)


@pytest.mark.parametrize("init", ["kmeans++", "random"])
@pytest.mark.parametrize("kind", ["k equals n", "duplicates", "black", "one code"])
def test_awkward_codebooks_hold_no_nan(defense_name, backend, device, init: str, kind: str) -> None:
    images, noise, codes = noise_images(2, 3, 6, 6).to(device), 0.0, 5
    if kind == "k equals n":
        codes = create(defense_name).grid.count(6, 6)
    elif kind == "duplicates":
        images = images[:, :, :1, :1].expand(-1, -1, 6, 6).contiguous()
        images[:, :, 2:4] = 0.5
    elif kind == "black":
        images = torch.zeros(2, 3, 6, 6, device=device)
    else:
        codes = 1
    for noise in (0.0, 4 / 255):
        defense = make(defense_name, backend, codes=codes, init=init, sigma=noise, tau=noise)
        assert defense.codebook(images).isfinite().all()
        output = defense(images)
        assert output.isfinite().all()
        if kind == "k equals n" and noise == 0:
            assert float((output - images).abs().max()) < 1e-6, "every patch is its own centre"
        if kind == "black" and noise == 0:
            assert torch.equal(output, images)


def test_presets_carry_the_paper_settings(defense_name) -> None:
    for data, shape in {"mnist": (1, 28, 28), "cifar10": (3, 32, 32), "cifar100": (3, 32, 32)}.items():
        defense = type(create(defense_name)).preset(data, seed=1)
        assert (defense.sigma, defense.tau) == (4 / 255, 4 / 255)
        assert defense(noise_images(1, *shape)).shape == (1, *shape)
    assert type(create(defense_name)).preset("imagenet", seed=1).codes == 30


def test_settings_rebuild_the_same_defense(defense_name, noise, natural: Tensor) -> None:
    tau = 0.02 if noise == "shared" else 0.01
    given = {"codes": 7, "sigma": 0.02, "tau": tau, "noise": noise, "iterations": 3, "init": "random"}
    defense = create(defense_name, **given, seed=4)
    again = create(defense_name, **defense.settings(), seed=4)
    assert torch.equal(defense(natural[:4]), again(natural[:4]))
