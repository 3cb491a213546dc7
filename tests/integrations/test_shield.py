"""The door of all adapters: usual kinds of images in, the same kind out, with a gradient."""

import pytest
import torch

import vqshield as vq
from vqshield.core.errors import MissingExtraError
from vqshield.integrations import require
from vqshield.integrations.shield import Shield


@pytest.mark.parametrize(
    "dtype", [torch.uint8, torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str
)
@pytest.mark.parametrize("shape", [(3, 12, 12), (2, 3, 12, 12), (2, 2, 3, 12, 12)], ids=str)
def test_the_same_kind_comes_out(natural, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    pixels = natural[:4, :, :12, :12].reshape(-1)[: torch.Size(shape).numel()].reshape(shape)
    images = (pixels * 255).byte() if dtype == torch.uint8 else pixels.to(dtype)
    found = Shield("prd:codes=5", seed=0)(images)
    assert (found.shape, found.dtype) == (images.shape, dtype)
    expected = vq.PRD(codes=5, seed=0)(pixels.reshape(-1, 3, 12, 12)).reshape(shape)
    scale = 255 if dtype == torch.uint8 else 1
    close = ((found.double() / scale - expected).abs() < 0.02).double().mean()  # a rounding may move a patch
    assert close > 0.9


def test_the_gradient_is_that_of_a_defended_model(natural) -> None:
    for surrogate in ("ste", "soft"):
        alone, inside = (
            Shield("swrd:codes=5", surrogate=surrogate, seed=3),
            natural[:2].clone().requires_grad_(),
        )
        model = vq.defend(torch.nn.Identity(), "swrd", codes=5, seed=3, surrogate=surrogate)
        weights = torch.rand(inside.shape, generator=torch.Generator().manual_seed(0))
        gradients = [
            torch.autograd.grad((each(inside) * weights).sum(), inside)[0] for each in (alone, model)
        ]
        assert torch.allclose(*gradients, atol=1e-6)


def test_a_rounding_is_clamped_and_keeps_its_gradient() -> None:
    images = torch.rand(1, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    images[0, 0, 0, :2] = torch.tensor([-5e-7, 1.0000001])
    points = images.requires_grad_()
    found = Shield("prd:codes=3", seed=0)(points)
    assert torch.equal(torch.autograd.grad(found.sum(), points)[0], torch.ones_like(points))


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (torch.full((1, 3, 8, 8), 1.1), "1.1"),
        (torch.full((1, 3, 8, 8), torch.nan), "nan"),
        (torch.ones(1, 3, 8, 8).long(), "torch.int64"),
        (torch.ones(8, 8), r"shape \(8, 8\)"),
        ("picture", "str"),
        (torch.ones(1, 3, 1, 1), "size=2"),
    ],
)
def test_what_cannot_be_taken_is_named(images, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Shield("prd:codes=5")(images)


def test_a_surrogate_that_needs_the_classifier_is_refused() -> None:
    with pytest.raises(ValueError, match="needs the classifier"):
        Shield("prd", surrogate="score")


def test_an_empty_batch_stays_empty() -> None:
    assert Shield("prd:codes=4")(torch.empty(0, 3, 8, 8)).shape == (0, 3, 8, 8)


def test_without_the_library_the_extra_is_named() -> None:
    with pytest.raises(MissingExtraError, match=r"no_such_library is not installed.*\.\[kornia\]"):
        require("no_such_library.augmentation", "kornia")
