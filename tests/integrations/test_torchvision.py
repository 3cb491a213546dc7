"""A shield among torchvision's transforms: kinds kept, boxes untouched, draws that a seed repeats."""

import importlib.util

import numpy as np
import pytest
import torch
from PIL import Image

import vqshield as vq

if importlib.util.find_spec("torchvision") is None:
    pytest.skip("torchvision is not installed", allow_module_level=True)
try:
    from torchvision import tv_tensors
    from torchvision.transforms import v2
except (ImportError, RuntimeError) as error:
    pytest.skip(f"torchvision does not fit this torch: {error}", allow_module_level=True)

from vqshield.integrations.torchvision import ShieldTransform


@pytest.fixture
def image(natural) -> torch.Tensor:
    return natural[0]


def test_every_kind_comes_out_as_it_went_in(image) -> None:
    expected = vq.PRD(codes=5, seed=0)(image[None])[0]
    as_bytes = (image * 255).round().byte()
    picture = Image.fromarray(as_bytes.permute(1, 2, 0).numpy())
    for given in (image, as_bytes, tv_tensors.Image(image), picture):
        found = ShieldTransform("prd:codes=5", seed=0)(given)
        assert type(found) is type(given) or isinstance(found, Image.Image)
        pixels = v2.functional.to_dtype(v2.functional.to_image(found), torch.float32, scale=True)
        assert ((pixels - expected).abs() < 0.02).double().mean() > 0.9


def test_alpha_is_kept(image) -> None:
    pixels = np.concatenate(
        [(image * 255).byte().permute(1, 2, 0).numpy(), np.full((32, 32, 1), 7, np.uint8)], 2
    )
    found = ShieldTransform("prd:codes=5", seed=0)(Image.fromarray(pixels, "RGBA"))
    assert np.array_equal(np.asarray(found)[..., 3], pixels[..., 3])
    assert len(np.unique(np.asarray(found)[..., :3].reshape(-1, 3), axis=0)) <= 20


def test_boxes_masks_and_labels_stay(image) -> None:
    sample = {
        "image": tv_tensors.Image(image),
        "boxes": tv_tensors.BoundingBoxes([[1, 2, 3, 4]], format="XYXY", canvas_size=(32, 32)),
        "mask": tv_tensors.Mask(torch.ones(32, 32)),
        "label": torch.tensor(3),
    }
    found = v2.Compose([ShieldTransform("prd:codes=5", seed=0), v2.RandomHorizontalFlip(p=0.0)])(sample)
    assert not torch.equal(found["image"], sample["image"])
    assert all(
        found[key] is sample[key] or torch.equal(found[key], sample[key])
        for key in ("boxes", "mask", "label")
    )


def test_a_batch_has_a_draw_for_each_image_and_a_seed_repeats_them(image) -> None:
    batch = image.expand(3, -1, -1, -1)
    found = ShieldTransform("swrd:codes=5", seed=1)(batch)
    assert not torch.equal(found[0], found[1])
    assert torch.equal(found, vq.SWRD(codes=5, seed=1)(batch))


def test_a_mode_or_shape_that_is_none_is_named() -> None:
    with pytest.raises(ValueError, match="'CMYK'"):
        ShieldTransform("prd")(Image.new("CMYK", (8, 8)))
    with pytest.raises(ValueError, match=r"shape \(8, 8\)"):
        ShieldTransform("prd")(torch.ones(8, 8))
