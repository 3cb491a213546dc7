"""Every bad setting and every bad tensor gets a ValueError that names it, before any work."""

import re

import pytest
import torch
from conftest import noise_images

import vqshield as vq

NAN = float("nan")
GOOD = noise_images(2, 3, 16, 16)


def with_value(value: float) -> torch.Tensor:
    images = GOOD.clone()
    images[1, 2, 3, 4] = value
    return images


BAD_SETTINGS = [
    (vq.RandDisc, {"codes": 0}, "codes=0 should be from 1 to 1048576"),
    (vq.RandDisc, {"codes": -3}, "codes=-3"),
    (vq.RandDisc, {"codes": 2.5}, "codes=2.5 should be a whole number"),
    (vq.RandDisc, {"codes": True}, "codes=True should be a whole number"),
    (vq.RandDisc, {"codes": "25"}, "codes='25'"),
    (vq.PRD, {"size": 0}, "size=0"),
    (vq.PRD, {"size": 1.5}, "size=1.5"),
    (vq.SWRD, {"size": -1}, "size=-1"),
    (vq.PRD, {"sigma": -0.1}, "sigma=-0.1 should be from 0 to 1"),
    (vq.PRD, {"sigma": NAN}, "sigma=nan"),
    (vq.PRD, {"sigma": "0.1"}, "sigma='0.1'"),
    (vq.SWRD, {"tau": -1e-9}, "tau=-1e-09"),
    (vq.SWRD, {"tau": float("inf")}, "tau=inf"),
    (vq.SWRD, {"beta": -2.0}, "beta=-2.0"),
    (vq.SWRD, {"beta": NAN}, "beta=nan"),
    (vq.SWRD, {"iterations": 0}, "iterations=0"),
    (vq.SWRD, {"tolerance": 1.5}, "tolerance=1.5 should be from 0 to 1"),
    (vq.SWRD, {"sample": 0}, "sample=0 should be from 1 to"),
    (vq.SWRD, {"sample": 2.5}, "sample=2.5 should be a whole number"),
    (vq.PRD, {"sample": 24}, "sample=24 should be at least codes=25"),
    (vq.SWRD, {"init": "furthest"}, "init='furthest' is unknown; choose one of kmeans++, random"),
    (vq.SWRD, {"weights_from": "both"}, "weights_from='both' is unknown; choose one of clean, noisy"),
    (vq.PRD, {"padding": "wrap"}, "padding='wrap' is unknown; choose one of"),
    (vq.SWRD, {"seed": -1}, "seed=-1"),
    (vq.SWRD, {"seed": 2**64}, f"seed={2**64}"),
    (vq.SWRD, {"memory": 0}, "memory=0"),
    (vq.SWRD, {"backend": "fast"}, "backend='fast' is unknown; choose one of auto"),
]


@pytest.mark.parametrize(("defense", "settings", "message"), BAD_SETTINGS)
def test_bad_settings(defense: type[vq.Defense], settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        defense(**settings)


BAD_TENSORS = [
    ([[0.5]], "images should be a torch tensor, not list"),
    (GOOD.numpy(), "images should be a torch tensor, not ndarray"),
    (GOOD[0, 0], "images of shape (16, 16) should have 4 dimensions, (B, q, h, w), or 3, (q, h, w)"),
    (GOOD[None], "images of shape (1, 2, 3, 16, 16)"),
    (GOOD.long(), "images of dtype torch.int64"),
    (GOOD > 0.5, "images of dtype torch.bool"),
    (with_value(NAN), "images contain nan"),
    (with_value(1.5), "images contain 1.5"),
    (with_value(-0.25), "images contain -0.25"),
    (with_value(float("inf")), "images contain inf"),
    (with_value(float("-inf")), "images contain -inf"),
    (with_value(1.0002), "images contain 1.0002"),
    (with_value(1.01).half(), "images contain 1.00976562"),
    (with_value(-0.04).bfloat16(), "images contain -0.040039"),
    (with_value(NAN).half(), "images contain nan"),
    (with_value(NAN).bfloat16(), "images contain nan"),
    (with_value(float("inf")).half(), "images contain inf"),
    (with_value(float("-inf")).bfloat16(), "images contain -inf"),
    (GOOD * 255, "every value should lie in [0, 1]"),
    (GOOD[:, :0], "images of shape (2, 0, 16, 16) have no pixels"),
    (GOOD[:, :, :0], "images of shape (2, 3, 0, 16) have no pixels"),
    (GOOD[:, :, :2], "size=3 should be at most min(h, w)=2"),
    (GOOD[:, :, :, :1], "size=3 should be at most min(h, w)=1"),
    (GOOD[:, :, :4, :4], "codes=25 should be at most the number of patches n=4"),
]


@pytest.mark.parametrize(("images", "message"), BAD_TENSORS)
def test_bad_images(images: object, message: str) -> None:
    defense = vq.SWRD(size=3, codes=25)
    for call in (defense, defense.codebook, lambda x: defense.quantize(x, torch.zeros(2, 25, 27))):
        with pytest.raises(ValueError, match=re.escape(message)):
            call(images)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("streams", "message"),
    [
        ([0, 1], "streams of type list should be an int64 tensor"),
        (torch.tensor([0, 1], dtype=torch.int32), "streams of type torch.int32"),
        (torch.tensor([0.0, 1.0]), "streams of type torch.float32"),
        (torch.arange(3), "streams of shape (3,) should be (2,)"),
        (torch.zeros(2, 1, dtype=torch.int64), "streams of shape (2, 1) should be (2,)"),
    ],
)
def test_bad_streams(streams: object, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        vq.PRD()(GOOD, streams=streams)


@pytest.mark.parametrize(
    ("centres", "message"),
    [
        (torch.zeros(25, 12), "centres of shape (25, 12) should be (2, k, 12)"),
        (torch.zeros(2, 25, 27), "centres of shape (2, 25, 27) should be (2, k, 12)"),
        (torch.zeros(1, 25, 12), "centres of shape (1, 25, 12) should be (2, k, 12)"),
        (torch.full((2, 25, 12), NAN), "centres contain nan"),
    ],
)
def test_bad_centres(centres: torch.Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        vq.PRD(size=2).quantize(GOOD, centres)


def test_unknown_names_list_the_known_ones() -> None:
    with pytest.raises(
        ValueError, match="defense='gif' is unknown; choose one of bitdepth, essential, gaussian"
    ):
        vq.defend(torch.nn.Identity(), "gif")
    with pytest.raises(ValueError, match="randdisc has no setting 'size'; it has codes, sigma"):
        vq.defend(torch.nn.Identity(), "randdisc", size=2)
    with pytest.raises(ValueError, match="preset='svhn' is unknown; choose one of cifar10, cifar100"):
        vq.SWRD.preset("svhn")
    with pytest.raises(
        ValueError, match="surrogate='magic' is unknown; choose one of learned, own, score, soft, ste"
    ):
        vq.defend(torch.nn.Identity(), surrogate="magic")
    with pytest.raises(ValueError, match="defense should be a spec string such as"):
        vq.Defended(torch.nn.Identity(), 3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="classifier should be a module, not str"):
        vq.Defended("resnet", vq.PRD())  # type: ignore[arg-type]
