"""What an adapter cannot take, it names: values out of range, nan, dtypes, shapes, settings."""

import importlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import vqshield as vq
from vqshield.core.errors import MissingExtraError

GREY = torch.full((2, 3, 8, 8), 0.5)


def adapter(name: str) -> Any:
    try:
        return importlib.import_module(f"vqshield.integrations.{name}")
    except (MissingExtraError, ImportError) as error:
        pytest.skip(str(error))


def art() -> Callable[[Tensor], Any]:
    shield = adapter("art").ShieldPreprocessor("prd:codes=3", device_type="cpu")
    return lambda images: shield(images.numpy())[0]


def kornia() -> Callable[[Tensor], Any]:
    return adapter("kornia").ShieldAugmentation("prd:codes=3")


def torchvision() -> Callable[[Tensor], Any]:
    return adapter("torchvision").ShieldTransform("prd:codes=3")


def albumentations() -> Callable[[Tensor], Any]:
    transform = adapter("albumentations").ShieldTransform("prd:codes=3")
    return lambda images: [transform(image=each.permute(1, 2, 0).numpy())["image"] for each in images]


def lightning() -> Callable[[Tensor], Any]:
    callback = adapter("lightning").ShieldCallback("prd:codes=3")
    module = SimpleNamespace(on_after_batch_transfer=lambda batch, number: batch)
    callback.setup(SimpleNamespace(datamodule=None), module, "test")
    return lambda images: module.on_after_batch_transfer([images, 1], 0)[0]


ADAPTERS = [art, kornia, torchvision, albumentations, lightning]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("made", ADAPTERS, ids=lambda made: made.__name__)
def test_bad_images_are_named_by_every_adapter(made: Callable[[], Callable[[Tensor], Any]]) -> None:
    shield = made()
    for value, message in ((1.5, "1.5"), (-3.0, "-3"), (torch.nan, "nan")):
        with pytest.raises(ValueError, match=f"images contain {message}"):
            shield(torch.full_like(GREY, value))
    with pytest.raises((ValueError, TypeError), match=r"int64|contain 2"):  # ART turns all into floats
        shield(GREY.long() + 2)
    with pytest.raises(ValueError, match="size=2"):
        shield(GREY[:, :, :1, :1])
    with pytest.raises(ValueError, match=r"channels|no pixels"):
        shield(GREY[:, :0])
    assert len(shield(GREY[:0])) == 0
    assert len(shield(GREY)) == 2  # and it still works


def test_a_lightning_batch_without_images_is_named() -> None:
    callback = adapter("lightning").ShieldCallback("prd:codes=3", key="image")
    module = SimpleNamespace(on_after_batch_transfer=lambda batch, number: batch)
    callback.setup(SimpleNamespace(datamodule=None), module, "test")
    with pytest.raises(ValueError, match="a list has no images at key='image'"):
        module.on_after_batch_transfer([GREY], 0)
    with pytest.raises(ValueError, match="stages='tune' is unknown"):
        adapter("lightning").ShieldCallback(stages=("tune",))


def test_a_wrong_number_of_channels_is_named() -> None:
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(144, 5))
    model = vq.defend(network, "prd", codes=3, mean=[0.5] * 3, std=[0.2] * 3)
    for count in (1, 4):
        with pytest.raises(ValueError, match=f"images of {count} channels cannot be normalised .* of 3"):
            model(torch.full((2, count, 8, 8), 0.5))
    assert model(GREY).shape == (2, 5)
    with pytest.raises(RuntimeError, match="3 channels, but got 1"):  # torch's own word
        vq.defend(network, "prd", codes=3)(GREY[:, :1])
