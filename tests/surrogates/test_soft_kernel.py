"""The native kernel's gradient of the soft surrogate against autograd of the formula, in float64."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from conftest import noise_images
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

import vqshield as vq
from vqshield.core.errors import InvalidInputError
from vqshield.data import sample
from vqshield.quantization import patches
from vqshield.quantization.kernels import native
from vqshield.quantization.kernels.native import Native
from vqshield.quantization.noise import Draw
from vqshield.surrogates import Shielding, Soft

SEED, STREAM = 5, 3

pytestmark = pytest.mark.skipif(
    Native().missing(torch.device("cpu")) is not None, reason="no compiled kernel is here"
)


def shielding(images: Tensor, defense: vq.Quantizer, first: int = STREAM) -> Shielding:
    streams = torch.arange(len(images)) + first
    plain = images.detach()
    centres = defense.codebook(plain.float(), streams=streams).to(images)
    quantized = defense.quantize(plain, centres, streams=streams)
    return Shielding(images, quantized, defense, streams, centres)


def kernel_gradient(
    soft: Soft, images: Tensor, defense: vq.Quantizer, weights: Tensor, first: int = STREAM
) -> Tensor:
    points = images.detach().requires_grad_()
    attached = soft.attach(shielding(points, defense, first))
    assert "Softened" in type(attached.grad_fn).__name__, "the kernel was not asked"
    return torch.autograd.grad((attached * weights).sum(), points)[0]


def formula_gradient(soft: Soft, images: Tensor, defense: vq.Quantizer, weights: Tensor) -> Tensor:
    """Autograd of the formula, in the dtype of the images; the centres are those of float32 images."""
    points = images.detach().requires_grad_()
    smooth = soft._smooth(shielding(points, defense))
    return torch.autograd.grad((smooth * weights).sum(), points)[0]


def far(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).abs().max() / expected.abs().max())


def some_images(channels: int, height: int, width: int, count: int = 2) -> Tensor:
    """Cut from the bundled photographs: smooth in places, as what is attacked is."""
    return sample(count).floats()[:, :channels, 4 : 4 + height, 3 : 3 + width].contiguous()


@st.composite
def cases(draw: st.DrawFn) -> tuple[vq.Quantizer, Soft, Tensor, Tensor]:
    size = draw(st.integers(1, 5))
    height, width = (draw(st.integers(size, 24)) for _ in range(2))
    channels = draw(st.sampled_from([1, 3]))
    kind = draw(st.sampled_from(["zero", "reflect", "sliding", "noisy sliding"]))
    if kind == "reflect" and size > 1:  # what is mirrored must be there
        height, width = max(height, 2 * size), max(width, 2 * size)
    tau = draw(st.sampled_from([0.0, 4 / 255, 0.05]))
    noise = draw(st.sampled_from(["patch", "image"]))
    grid = patches.Sliding(size) if "sliding" in kind else patches.Disjoint(size)
    most = grid.count(height, width)
    codes = min(most, draw(st.sampled_from([1, 2, 3, 7, 25, 256])))
    common = {"size": size, "codes": codes, "tau": tau, "noise": noise, "iterations": 3, "seed": SEED}
    defense: vq.Quantizer
    if "sliding" in kind:
        weights_from = "noisy" if noise == "image" or kind == "noisy sliding" else "clean"
        defense = vq.SWRD(**common, weights_from=weights_from, beta=draw(st.sampled_from([0.0, 2.0, 10.0])))
    else:
        defense = vq.PRD(**common, padding=kind)
    soft = Soft(
        temperature=draw(st.sampled_from([0.03, 0.1, 1.0])),
        centres=draw(st.sampled_from(["constant", "means"])),
        noise=draw(st.sampled_from(["none", "drawn"])),
    )
    weights = noise_images(2, channels, height, width, seed=draw(st.integers(0, 99))) - 0.5
    return defense, soft, some_images(channels, height, width), weights


@given(cases())
@settings(max_examples=40, deadline=None)
def test_it_is_the_gradient_of_the_formula(case: tuple[vq.Quantizer, Soft, Tensor, Tensor]) -> None:
    """To 1e-5 of the largest value; where float32 itself is coarser, nearer than the formula in float32."""
    defense, soft, images, weights = case
    expected = formula_gradient(soft, images.double(), defense, weights.double())
    found = kernel_gradient(soft, images, defense, weights)
    largest = float(expected.abs().max())
    if largest < 1e-3:  # nothing but rounding: one code, or centres that never compete
        assert float((found - expected).abs().max()) < 1e-6
        return
    coarse = far(formula_gradient(soft, images, defense, weights), expected)
    assert far(found, expected) <= max(1e-5, coarse)


@pytest.mark.parametrize("isa", native.ISAS)
@pytest.mark.parametrize("name", ["randdisc", "prd", "swrd"])
def test_all_builds_agree_with_the_defaults_of_every_quantizer(
    name: str, isa: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if isa not in native.available():
        pytest.skip(f"{isa} does not run here")
    monkeypatch.setattr(Native, "_library", lambda self: native._load(isa))
    defense = vq.defenses.create(name, seed=SEED)
    assert isinstance(defense, vq.Quantizer)
    images = some_images(3, 28, 29)
    weights = noise_images(*images.shape, seed=1) - 0.5
    expected = formula_gradient(Soft(), images.double(), defense, weights.double())
    assert far(kernel_gradient(Soft(), images, defense, weights), expected) < 1e-5


def test_it_points_where_finite_differences_point() -> None:
    """Along random directions, of the formula in float64: a check that knows nothing of autograd."""
    defense, soft = vq.SWRD(size=2, codes=4, seed=SEED), Soft(temperature=0.1, centres="constant")
    images = some_images(3, 8, 9, count=1)
    weights = noise_images(*images.shape, seed=2) - 0.5
    found = kernel_gradient(soft, images, defense, weights).double()
    given_ = shielding(images.double(), defense)
    for seed in range(3):
        direction = noise_images(*images.shape, seed=seed).double() - 0.5
        ends = [
            float((soft._smooth(replace(given_, images=given_.images + way * direction)) * weights).sum())
            for way in (1e-6, -1e-6)
        ]
        assert float((found * direction).sum()) == pytest.approx((ends[0] - ends[1]) / 2e-6, rel=1e-4)


@pytest.mark.parametrize("noise", ["none", "drawn"])
@pytest.mark.parametrize("defense", [vq.PRD(seed=SEED), vq.SWRD(seed=SEED)], ids=["prd", "swrd"])
def test_neither_the_batch_nor_threads_change_a_bit(defense: vq.Quantizer, noise: str) -> None:
    soft, images = Soft(noise=noise), some_images(3, 17, 19, count=5)
    weights = noise_images(*images.shape, seed=1) - 0.5
    together = kernel_gradient(soft, images, defense, weights)
    for number in range(5):
        part = slice(number, number + 1)
        alone = kernel_gradient(soft, images[part], defense, weights[part], first=STREAM + number)
        assert torch.equal(alone, together[part])
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        assert torch.equal(kernel_gradient(soft, images, defense, weights), together)
    finally:
        torch.set_num_threads(before)


def test_the_values_are_the_quantized_ones_and_a_model_finds_its_codebook_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    images, streams = some_images(3, 16, 16), torch.arange(2)
    defense = vq.SWRD(seed=SEED)
    model = vq.Defended(torch.nn.Flatten(), defense, surrogate="soft")
    expected = defense(images, streams=streams).flatten(1)
    asked: list[tuple[str, bool]] = []  # what the kernel is called for, and whether with centres
    run = Native.run

    def noted(self, wanted, padded, recipe, draw, *given, **options):
        asked.append((wanted, bool(given)))
        return run(self, wanted, padded, recipe, draw, *given, **options)

    monkeypatch.setattr(Native, "run", noted)
    found = model(images.clone().requires_grad_(), streams=streams)
    assert torch.equal(found.detach(), expected)
    found.sum().backward()
    assert asked == [("centres", False), ("images", True)]


def test_a_defense_with_hooks_is_called_as_ever() -> None:
    images, defense = some_images(3, 16, 16), vq.SWRD(seed=SEED)
    seen: list[torch.Size] = []
    defense.register_forward_hook(lambda module, given, output: seen.append(output.shape))
    vq.Defended(torch.nn.Flatten(), defense, surrogate="soft")(images.requires_grad_()).sum().backward()
    assert seen == [images.shape]
    assert images.grad is not None
    assert bool(images.grad.abs().max() > 0)


def test_torch_func_and_second_derivatives_take_the_formula() -> None:
    defense, soft = vq.PRD(size=2, codes=4, seed=SEED), Soft(temperature=0.3)
    images, streams = some_images(3, 8, 8), torch.arange(2)
    model = vq.Defended(torch.nn.Flatten(), defense, surrogate=soft)

    def loss(points: Tensor) -> Tensor:
        return model(points, streams=streams).square().sum()

    points = images.clone().requires_grad_()
    (slope,) = torch.autograd.grad(loss(points), points, create_graph=True)
    assert torch.allclose(slope, torch.func.grad(loss)(images), rtol=1e-4, atol=1e-5)
    (plain,) = torch.autograd.grad(loss(points), points)
    assert torch.allclose(plain, slope, rtol=1e-4, atol=1e-5)
    (second,) = torch.autograd.grad(slope.square().sum(), points)
    assert bool(second.isfinite().all())
    assert bool(second.abs().max() > 0)


def test_float64_images_and_other_backends_take_the_formula() -> None:
    images = some_images(3, 8, 8)
    for points, defense in (
        (images.double().requires_grad_(), vq.PRD(codes=4, seed=SEED)),
        (images.clone().requires_grad_(), vq.PRD(codes=4, seed=SEED, backend="torch")),
    ):
        attached = Soft().attach(shielding(points, defense))
        assert "Softened" not in type(attached.grad_fn).__name__


def test_layouts_and_expanded_slopes_are_taken_as_they_are() -> None:
    defense, images = vq.SWRD(seed=SEED), some_images(3, 16, 18)
    expected = kernel_gradient(Soft(), images, defense, torch.ones(()))
    last = images.contiguous(memory_format=torch.channels_last)
    assert torch.equal(kernel_gradient(Soft(), last, defense, torch.ones(())), expected)
    turned = F.pad(images, (0, 2))[..., :18]
    assert torch.equal(kernel_gradient(Soft(), turned, defense, torch.ones(())), expected)


def test_what_cannot_be_is_refused_with_its_name() -> None:
    images, defense = some_images(3, 8, 8), vq.PRD(size=2, codes=4, seed=SEED)
    draw, centres = Draw(SEED, torch.arange(2)), defense.codebook(images)

    def ask(**changes: Tensor) -> Tensor:
        given_ = {"padded": images, "assigned": images, "centres": centres, "slopes": images, **changes}
        return Native().soft_gradient(
            **given_, recipe=defense.recipe(), draw=draw, temperature=0.1, means=True
        )

    assert ask().shape == images.shape
    with pytest.raises(InvalidInputError, match="slopes of shape"):
        ask(slopes=images[:1])
    with pytest.raises(InvalidInputError, match="centres of shape"):
        ask(centres=centres[:, :, :5])
    with pytest.raises(InvalidInputError, match="centres"):
        ask(centres=centres * np.inf)
    assert ask(slopes=images * np.nan).isnan().any(), "a slope that is no number stays visible"


def test_a_large_image_takes_no_tensors_of_the_size_of_its_patches() -> None:
    """328×328: the patches alone would be 11.5 MB, their weights 12.7 MB."""
    images = F.interpolate(some_images(3, 20, 20, count=1), (328, 328), mode="bilinear")
    defense = vq.SWRD(codes=30, iterations=1, init="random", seed=SEED)
    points = images.requires_grad_()
    attached = Soft().attach(shielding(points, defense))
    with torch.profiler.profile(profile_memory=True) as profile:
        attached.sum().backward()
    taken = max((event.cpu_memory_usage for event in profile.key_averages()), default=0)
    assert taken < 4 * images.numel() * 4, "more than a few copies of the image"
