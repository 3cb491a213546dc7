"""Corruptions: every kind hurts, more with severity, and does to an image the same whatever is around it."""

import io
from itertools import pairwise

import numpy as np
import pytest
import torch

from vqshield.core.errors import InvalidInputError
from vqshield.data import sample
from vqshield_paper.corruptions import SEVERITIES, corrupted, list_corruptions

PHOTOS = sample(6)


def distance(left, right):
    return float((left.float() - right.float()).square().mean().sqrt())


def test_there_are_fifteen():
    assert len(list_corruptions()) == 15


@pytest.mark.parametrize("kind", list_corruptions())
def test_a_kind_of_corruption(kind):
    images = PHOTOS.images
    found = {severity: corrupted(images, kind, severity) for severity in SEVERITIES}
    assert all(each.shape == images.shape and each.dtype == torch.uint8 for each in found.values())
    far = [distance(each, images) for each in found.values()]
    assert far[0] > 0.5
    assert far[-1] > 1.1 * far[0]
    assert all(after > 0.9 * before for before, after in pairwise(far))
    assert torch.equal(corrupted(images[4:], kind, 3, first=4), found[3][4:])  # whatever batch it is in
    grey = corrupted(images[:2, :1], kind, 3)
    assert grey.shape == (2, 1, 32, 32)
    tiny = corrupted(images[:1, :, :5, :4], kind, 5)
    assert tiny.shape == (1, 3, 5, 4)


def test_seeds_decide_and_the_global_generator_does_not():
    before = torch.get_rng_state()
    first = corrupted(PHOTOS.images, "snow", 2, seed=1)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(first, corrupted(PHOTOS.images, "snow", 2, seed=1))
    assert not torch.equal(first, corrupted(PHOTOS.images, "snow", 2, seed=2))


def test_known_values():
    images = PHOTOS.images
    floats = images.float() / 255
    mean = floats.mean((2, 3), keepdim=True)
    expected = (mean + 0.4 * (floats - mean)).mul(255).round()
    assert float((corrupted(images, "contrast", 3).float() - expected).abs().max()) <= 1
    brighter = corrupted(images, "brightness", 5).float().amax(1)
    assert float((brighter - (floats.amax(1) + 0.3).clamp(max=1) * 255).abs().max()) <= 1
    noise = corrupted(torch.full((4, 3, 32, 32), 128).byte(), "gaussian-noise", 5).float() / 255
    assert float(noise.std()) == pytest.approx(0.10, rel=0.05)
    changed = (corrupted(images, "impulse-noise", 5) != images).float().mean()
    assert float(changed) == pytest.approx(0.07, rel=0.15)


@pytest.mark.parametrize("channels", [1, 3])
def test_jpeg_loses_what_a_jpeg_library_loses(channels):
    image = pytest.importorskip("PIL.Image")
    images = PHOTOS.images[:, :channels]
    for severity, quality in ((1, 80), (5, 40)):
        found = corrupted(images, "jpeg-compression", severity)
        for own, original in zip(found, images, strict=True):
            buffer = io.BytesIO()
            pixels = original.permute(1, 2, 0).squeeze(2).numpy()
            image.fromarray(pixels).save(buffer, format="JPEG", quality=quality)
            theirs = torch.from_numpy(np.array(image.open(buffer))).reshape(32, 32, channels).permute(2, 0, 1)
            assert distance(own, theirs) < 0.35 * distance(theirs, original)


def test_bad_input_is_named():
    with pytest.raises(InvalidInputError, match="kind='rain' is unknown"):
        corrupted(PHOTOS.images, "rain", 1)
    with pytest.raises(InvalidInputError, match="severity=6 should be from 1 to 5"):
        corrupted(PHOTOS.images, "fog", 6)
    with pytest.raises(InvalidInputError, match=r"torch\.float32 .* should be torch\.uint8"):
        corrupted(PHOTOS.floats(), "fog", 1)
