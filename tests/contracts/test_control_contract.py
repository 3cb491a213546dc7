"""What every registered defense that is no quantizer promises."""

import pytest
import torch
from conftest import noise_images
from torch import Tensor

import vqshield as vq
from vqshield.defenses import (
    create_any,
    defense_class,
    from_text,
    known_settings,
    list_all_defenses,
    list_defenses,
)

CONTROLS = [name for name in list_all_defenses() if name not in list_defenses()]
TEXTS = {"gaussian": "gaussian:sigma=0.05", "splitting": "splitting:scale=0.1"}
RANDOM = {"gaussian", "splitting", "resizepad", "essential"}
UNBOUNDED = {"gaussian"}  # its noise is not clamped
STREAMS = torch.arange(6) * 7919 + 3


@pytest.fixture(params=CONTROLS)
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def control(name: str) -> vq.Defense:
    return from_text(TEXTS.get(name, name), seed=5)


@pytest.mark.parametrize("shape", [(3, 16, 16), (1, 9, 12)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_images_come_back_as_images(name: str, control: vq.Defense, shape, dtype: torch.dtype) -> None:
    images = noise_images(2, *shape).to(dtype)
    before, found = images.clone(), control(images)
    assert (found.shape, found.dtype) == (images.shape, dtype)
    assert torch.equal(images, before)
    assert not torch.equal(found, images)
    assert name in UNBOUNDED or 0 <= float(found.min()) <= float(found.max()) <= 1
    assert control(images[:0]).shape == (0, *shape)


def test_an_image_is_the_same_alone_and_in_a_batch(control: vq.Defense, natural: Tensor) -> None:
    images = natural[:6]
    together = control(images, streams=STREAMS)
    assert torch.equal(control(images, streams=STREAMS), together)
    for i in (0, 5):
        alone = control(images[i : i + 1], streams=STREAMS[i : i + 1])[0]
        assert torch.allclose(alone, together[i], rtol=0, atol=1e-6)


def test_the_random_ones_draw_and_the_others_do_not(name: str, control: vq.Defense, natural: Tensor) -> None:
    first, second = control(natural[:2]), control(natural[:2])
    assert torch.equal(first, second) == (name not in RANDOM)
    assert torch.equal(control.reseeded(5)(natural[:2]), first)
    assert torch.equal(control.reseeded(6)(natural[:2]), first) == (name not in RANDOM)


def test_the_global_generator_is_neither_read_nor_advanced(control: vq.Defense) -> None:
    torch.manual_seed(0)
    before = torch.get_rng_state()
    first = control(noise_images(2, 3, 9, 9), streams=STREAMS[:2])
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(1)
    assert torch.equal(control(noise_images(2, 3, 9, 9), streams=STREAMS[:2]), first)


def test_a_gradient_goes_through_it(control: vq.Defense, natural: Tensor) -> None:
    points = natural[:2].clone().requires_grad_()
    for surrogate in (
        ("own", "soft", "ste") if control.surrogate(points, streams=STREAMS[:2]) is not None else ("own",)
    ):
        model = vq.Defended(lambda images: images.square().mean((2, 3)), control, surrogate=surrogate)
        logits = model(points, streams=STREAMS[:2])
        assert torch.equal(logits, model(natural[:2], streams=STREAMS[:2]))
        (slope,) = torch.autograd.grad(logits.sum(), points)
        assert slope.isfinite().all()
        assert bool((slope.abs().amax((1, 2, 3)) > 0).all())


def test_settings_rebuild_it(name: str, control: vq.Defense, natural: Tensor) -> None:
    again = create_any(name, **control.settings(), seed=5)
    assert torch.equal(again(natural[:2]), control.reseeded(5)(natural[:2]))
    assert set(known_settings(name)) == {*control.settings(), "seed", "streams", "range", "surrogate"}


def test_bad_images_are_named(control: vq.Defense) -> None:
    for images in (torch.rand(8, 8), torch.rand(1, 3, 8, 8).long(), torch.rand(1, 3, 8, 8) + 1):
        with pytest.raises(ValueError, match="images"):
            control(images)


def test_its_docstring_names_a_paper_and_its_surrogate(name: str) -> None:
    if name not in TEXTS:  # those are more than controls
        said = defense_class(name).__doc__ or ""
        assert any(f"20{year}" in said for year in range(10, 30))
        assert "surrogate" in said
