"""What every registered surrogate promises, for every registered defense."""

import pytest
import torch
from conftest import noise_images
from torch import Tensor, nn

import vqshield as vq
from vqshield.defenses import create
from vqshield.surrogates import get, list_surrogates
from vqshield.surrogates.soft import CENTRES, NOISES

CLASSES, BATCH, SHAPE = 4, 5, (3, 7, 9)
VARIANTS = {"soft": [f"soft:centres={centres},noise={noise}" for centres in CENTRES for noise in NOISES]}
QUICK = {"learned": "learned:width=4,updates=3"}
STREAMS = torch.arange(BATCH) * 7919 + 3


class Network(nn.Module):
    """Every image's logits by itself alone."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.first, self.last = nn.Conv2d(3, 6, 3, padding=1), nn.Linear(6 * 7 * 9, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        return self.last(self.first(images).tanh().flatten(1))


@pytest.fixture(
    params=[text for name in list_surrogates() for text in [QUICK.get(name, name), *VARIANTS.get(name, [])]]
)
def surrogate(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def model(defense_name: str, surrogate: str) -> vq.Defended:
    defense = create(defense_name, codes=5, seed=9)
    return vq.Defended(Network(), defense, surrogate=surrogate)


def gradient(model: vq.Defended, images: Tensor, streams: Tensor = STREAMS) -> Tensor:
    images = images.detach().requires_grad_()
    pulled = noise_images(BATCH, CLASSES, seed=1).to(images)[: len(images)]
    return torch.autograd.grad((model(images, streams=streams) * pulled).sum(), images)[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_logits_are_the_true_ones_bit_for_bit(model: vq.Defended, dtype: torch.dtype) -> None:
    images = noise_images(BATCH, *SHAPE).to(dtype)
    model.to(dtype)
    quantized = model.defense(images, streams=STREAMS)
    found = model(images.clone().requires_grad_(), streams=STREAMS)
    assert torch.equal(found, model.classifier(quantized))
    assert torch.equal(found, model(images, streams=STREAMS))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradients_are_finite_not_all_zero_and_of_the_images_shape(
    model: vq.Defended, dtype: torch.dtype
) -> None:
    found = gradient(model.to(dtype), noise_images(BATCH, *SHAPE).to(dtype))
    assert (found.shape, found.dtype) == ((BATCH, *SHAPE), dtype)
    assert found.isfinite().all()
    assert bool((found.abs().amax((1, 2, 3)) > 0).all())


def test_an_images_gradient_is_its_own_affair(model: vq.Defended) -> None:
    images = noise_images(BATCH, *SHAPE).double()
    together = gradient(model.double(), images)
    pulled = noise_images(BATCH, CLASSES, seed=1).double()
    for i in range(BATCH):
        alone = images[i : i + 1].clone().requires_grad_()
        logits = model(alone, streams=STREAMS[i : i + 1])
        (found,) = torch.autograd.grad((logits * pulled[i : i + 1]).sum(), alone)
        assert torch.allclose(found[0], together[i], rtol=1e-9, atol=1e-12)


def test_the_same_streams_give_the_same_gradient_and_others_another(model: vq.Defended) -> None:
    images = noise_images(BATCH, *SHAPE)
    first = gradient(model, images)
    assert torch.allclose(gradient(model, images), first, rtol=1e-5, atol=1e-7)
    assert not torch.allclose(gradient(model, images, STREAMS + 1), first, rtol=1e-3, atol=1e-5)


def test_global_generators_images_and_parameters_are_left_alone(model: vq.Defended) -> None:
    images = noise_images(BATCH, *SHAPE).requires_grad_()
    before, clean = torch.get_rng_state(), images.detach().clone()
    model.requires_grad_(False)
    model(images, streams=STREAMS).sum().backward()
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(images.detach(), clean)
    assert images.grad is not None
    assert all(parameter.grad is None for parameter in model.parameters())


def test_gradients_use_up_no_streams_besides_the_draws(model: vq.Defended) -> None:
    model(noise_images(BATCH, *SHAPE).requires_grad_()).sum().backward()
    assert model.defense.streams(noise_images(1, *SHAPE)).tolist() == [BATCH]


def test_bad_images_are_named_before_any_gradient(model: vq.Defended) -> None:
    with pytest.raises(ValueError, match=r"images contain 1.5; every value should lie in \[0, 1\]"):
        model(torch.full((1, *SHAPE), 1.5).requires_grad_())


def test_surrogates_are_fixed_and_equal_if_their_settings_are(surrogate: str) -> None:
    """They stand in records, and threats that hold them are looked up."""
    assert get(surrogate) == get(surrogate)
    assert hash(get(surrogate)) == hash(get(surrogate))
    with pytest.raises(AttributeError, match="cannot assign to field"):
        get(surrogate).temperature = 3
