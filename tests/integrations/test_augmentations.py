"""Shields among the augmentations of kornia and albumentations."""

import numpy as np
import pytest
import torch

import vqshield as vq


def test_kornia_replays_a_call_from_its_parameters(natural) -> None:
    pytest.importorskip("kornia.augmentation", reason="kornia is not installed")
    from vqshield.integrations.kornia import ShieldAugmentation

    images = natural[:4]
    augment = ShieldAugmentation("swrd:codes=5", seed=2)
    first = augment(images)
    assert torch.equal(first, vq.SWRD(codes=5, seed=2)(images))
    again = augment(images, params=augment._params)
    assert torch.equal(again, first)
    assert not torch.equal(augment(images), first)
    points = images.clone().requires_grad_()
    assert bool(torch.autograd.grad(augment(points).sum(), points)[0].ne(0).any())
    torch.manual_seed(3)
    changed = (ShieldAugmentation("prd:codes=5", seed=2, p=0.5)(natural) != natural).flatten(1).any(1)
    assert 16 < int(changed.sum()) < 48  # of 64
    same = ShieldAugmentation("prd:codes=5", seed=2, same_on_batch=True)(images[:1].expand(3, -1, -1, -1))
    assert torch.equal(same[0], same[2])


def test_albumentations_shields_bytes_and_leaves_masks(natural) -> None:
    albumentations = pytest.importorskip("albumentations", reason="albumentations is not installed")
    from vqshield.integrations.albumentations import ShieldTransform

    pixels = (natural[0] * 255).round().byte().permute(1, 2, 0).numpy()
    mask = np.arange(1024, dtype=np.uint8).reshape(32, 32)
    pipeline = albumentations.ReplayCompose([ShieldTransform("prd:codes=5", seed=2)])
    found = pipeline(image=pixels, mask=mask)
    assert found["image"].dtype == np.uint8
    expected = vq.PRD(codes=5, seed=2)(torch.from_numpy(pixels).permute(2, 0, 1)[None] / 255)[0]
    assert np.abs(found["image"] / 255 - expected.permute(1, 2, 0).numpy()).max() < 0.003
    assert np.array_equal(found["mask"], mask)
    assert found["replay"]["transforms"][0]["params"]["stream"] == 0
    grey = ShieldTransform("prd:codes=3", seed=2)(image=pixels[..., 0].astype(np.float32) / 255)["image"]
    assert (grey.shape, grey.dtype) == ((32, 32), np.float32)
    with pytest.raises(ValueError, match="int64"):
        ShieldTransform("prd")(image=pixels.astype(np.int64))
