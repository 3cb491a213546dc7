"""The learned surrogate: what it learns is the defense's own gradient, once, and the same every time."""

import pytest
import torch
import torch.nn.functional as F
from conftest import noise_images
from torch import Tensor, nn

import vqshield as vq
from vqshield.core.errors import InvalidInputError
from vqshield.surrogates import Learned

LEARNED = Learned(width=4, updates=60)


def blurred(images: Tensor) -> Tensor:
    return F.avg_pool2d(F.pad(images, (1, 1, 1, 1), mode="replicate"), 3, 1)


def hidden(images: Tensor) -> Tensor:
    return blurred(images.detach())


class Blurred(vq.Defense):
    def forward(self, images: Tensor, *, streams: Tensor | None = None) -> Tensor:
        self.streams(images, streams)
        return hidden(images)

    def settings(self) -> dict:
        return {}


def gradient(defense: object, surrogate: object, images: Tensor) -> Tensor:
    points = images.clone().requires_grad_()
    logits = vq.Defended(Pull(), defense, surrogate=surrogate)(points)
    return torch.autograd.grad(logits.sum(), points)[0]


class Pull(nn.Module):
    """A classifier whose gradient is noise, fine and coarse."""

    def forward(self, images: Tensor) -> Tensor:
        return (images * (noise_images(*images.shape[1:], seed=3) - 0.5)).flatten(1)


def likeness(one: Tensor, other: Tensor) -> float:
    return float(F.cosine_similarity(one.flatten(), other.flatten(), 0))


def test_it_finds_a_gradient_that_is_hidden(natural: Tensor) -> None:
    images, defense = natural[:16, :, 8:24, 8:24], vq.Preprocessor(hidden, seed=1)
    true = gradient(vq.Preprocessor(blurred), "own", images)
    learned = gradient(defense, LEARNED, images)
    assert likeness(learned, true) > 0.75
    assert likeness(gradient(defense, "own", images), true) < 0.5  # the identity


def test_it_learns_once_and_the_same_every_time(natural: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    quick, defense = Learned(width=4, updates=2), vq.SWRD(codes=5, seed=1)
    before = torch.get_rng_state()
    first = gradient(defense, quick, natural[:4])
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(gradient(defense.reseeded(1), quick, natural[:4]), first)
    monkeypatch.setattr(Learned, "fit", lambda *_: pytest.fail("it learned again"))
    gradient(defense, quick, natural[4:8])


def test_given_images_are_learned_from(natural: Tensor) -> None:
    quick = Learned(width=4, updates=2)
    defenses = [vq.SWRD(codes=5, seed=1) for _ in range(2)]
    quick.fit(defenses[0], natural[8:16])
    assert defenses[0].streams(natural[:1]).tolist() == [0], "learning used up streams"
    found = [
        gradient(defense.reseeded(1) if number else defense, quick, natural[:4])
        for number, defense in enumerate(defenses)
    ]
    assert not torch.equal(*found)
    with pytest.raises(InvalidInputError, match=r"\(0, 3, 32, 32\) are empty"):
        quick.fit(defenses[0], natural[:0])


def test_soft_is_the_learned_one_for_a_defense_without_centres_and_gradient(
    natural: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    monkeypatch.setattr(
        Learned,
        "attach",
        lambda self, shielding: asked.append(self) or shielding.quantized + shielding.images * 0,
    )
    gradient(Blurred(), "soft", natural[:2])
    assert asked == [Learned()]
    gradient(vq.GaussianNoise(sigma=0.1), "soft", natural[:2])
    gradient(vq.SWRD(codes=5), "soft", natural[:2])
    assert len(asked) == 1


@pytest.mark.parametrize("settings", [{"width": 0}, {"updates": 0}, {"width": 2000}])
def test_settings_that_cannot_work_are_named(settings: dict) -> None:
    with pytest.raises(InvalidInputError, match=next(iter(settings))):
        Learned(**settings)
