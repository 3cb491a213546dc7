"""RayS: it sees classes alone, finds the nearest wrong answer, and is not led by luck."""

import pytest
import torch
from conftest import noise_images
from torch import Tensor, nn
from toys import convnet, two_classes

from vqshield.attacks import EOT, L2, FastAnswers, Linf, RandomNoise, RayS
from vqshield.attacks.rays import _Exact, _Noisy

LINF = Linf(0.05)


def accuracy(model: nn.Module, images: Tensor, labels: Tensor, draws: int = 1) -> float:
    with torch.no_grad():
        return sum(float((model(images).argmax(1) == labels).double().mean()) for _ in range(draws)) / draws


class Flipping(nn.Module):
    """Adds noise to the margin of a linear model, by a generator of its own; counts what it is asked."""

    def __init__(self, model: nn.Module, scale: float) -> None:
        super().__init__()
        self.model, self.scale, self.asked = model, scale, 0
        self.generator = torch.Generator().manual_seed(0)

    def forward(self, images: Tensor) -> Tensor:
        self.asked += len(images)
        logits = self.model(images)
        return logits + self.scale * torch.randn(logits.shape, generator=self.generator)


def linear_case() -> tuple[nn.Module, Tensor, Tensor, Tensor]:
    """A linear model, images that it gets right, and how far the nearest wrong answer is in L-inf."""
    model, weight = two_classes(1, 8, 8)
    images = 0.4 + 0.2 * noise_images(6, 1, 8, 8)
    labels = model(images).argmax(1)
    lead = (model(images)[:, 0] - model(images)[:, 1]).abs() / 2
    return model, images, labels, lead.detach() / weight.abs().sum()


def test_the_radius_found_on_a_linear_model_comes_near_the_least() -> None:
    model, images, labels, least = linear_case()
    attack = RayS(ball=Linf(0.0))
    rays = _Exact(attack, model, images, labels)
    with torch.no_grad():
        for _ in range(1500):
            rays.step()
        moved = rays._at(torch.arange(6), rays.signs, rays.radius)
        assert bool((model(moved).argmax(1) != labels).all()), "every radius held is one that is wrong"
    assert bool((rays.radius >= least * 0.999).all())
    assert bool((rays.radius <= least * 1.25).all())


def test_it_breaks_more_with_more_queries_and_more_than_noise_does() -> None:
    model, images = convnet(), noise_images(16, 3, 16, 16)
    labels = model(images).argmax(1)
    left = [
        accuracy(model, RayS(ball=LINF, queries=q)(model, images, labels), labels) for q in (20, 150, 700)
    ]
    noise = RandomNoise(ball=LINF, tries=50, judgements=1)(model, images, labels)
    assert 1 >= left[0] > left[1] > left[2]
    assert left[2] < accuracy(model, noise, labels) - 0.2


def test_it_sees_the_class_and_nothing_else() -> None:
    """Logits of another scale and shape with the same largest one give the same images."""
    model, images = convnet(), noise_images(4, 3, 16, 16)
    labels = model(images).argmax(1)

    def classes(asked: Tensor) -> Tensor:
        return nn.functional.one_hot(model(asked).argmax(1), 5).float()

    attack = RayS(ball=LINF, queries=120)
    assert torch.equal(attack(model, images, labels), attack(classes, images, labels))


@pytest.mark.parametrize("ball", [LINF, L2(1.0)], ids=str)
def test_an_image_that_is_wrong_within_the_ball_is_asked_about_no_more(ball) -> None:
    model, images = Flipping(convnet(), 0.0), noise_images(8, 3, 16, 16)
    labels = model.model(images).argmax(1)
    found = RayS(ball=ball).trace(model, images, labels, (500,))
    wrong = model.model(found.images[0]).argmax(1) != labels
    used = found.used[0]
    assert bool(wrong.any())
    assert bool((used[wrong] < 500).all())
    assert bool((used[~wrong] == 500).all())
    assert model.asked == int(used.sum()), "every call is counted, image by image"


def test_the_usual_tolerance_sees_what_small_blocks_gain() -> None:
    """On a linear model that is far less than a thousandth of the range."""
    model, _ = two_classes(1, 32, 32)
    images = 0.4 + 0.2 * noise_images(2, 1, 32, 32)
    labels = model(images).argmax(1)
    radii = []
    for tolerance in (1e-3, RayS.tolerance):
        rays = _Exact(RayS(ball=Linf(0.0), tolerance=tolerance), model, images, labels)
        with torch.no_grad():
            rays.advance(4000)
        radii.append(rays.radius)
    assert bool((radii[1] < 0.8 * radii[0]).all())


def test_what_is_found_with_rounded_answers_is_wrong_exactly() -> None:
    """It ends on the boundary, where rounding decides."""
    model, images = convnet(), noise_images(16, 3, 16, 16)
    labels = model(images).argmax(1)
    asked = FastAnswers(model, "bf16")
    found = RayS(ball=Linf(0.08)).trace(asked, images, labels, (400,))
    ended = found.used[0] < 400
    assert int(ended.sum()) > 4
    assert bool((model(found.images[0]).argmax(1) != labels)[ended].all())
    exact = RayS(ball=Linf(0.08)).trace(model, images, labels, (400,))
    assert torch.equal(found.images[0], exact.images[0])
    assert torch.equal(found.used[0], exact.used[0])


def test_the_held_radius_is_where_half_of_the_answers_are_wrong() -> None:
    """On a linear model with noise on its margin, that is where the margin is zero along the ray."""
    model, images, labels, _ = linear_case()
    noisy = Flipping(model, 0.05)
    rays = _Noisy(RayS(ball=LINF), noisy, images, labels)
    with torch.no_grad():
        for _ in range(1500):
            rays.step()
        every = torch.arange(6)
        moved = [rays._at(every, rays.signs, share * rays.radius) for share in (0.4, 2.5)]
        right = [(model(each).argmax(1) == labels) for each in moved]
    assert bool(right[0].all())
    assert not bool(right[1].any())


@pytest.mark.parametrize("draws", [1, 5])
def test_random_answers_do_not_lead_it_astray(draws: int) -> None:
    model, images, labels, least = linear_case()
    noisy = Flipping(model, 0.05)
    asked = EOT(noisy, draws=draws) if draws > 1 else noisy
    ball = Linf(4 * float(least.max()))
    found = RayS(ball=ball).trace(asked, images, labels, (200, 3000))
    before, early, late = (accuracy(noisy, each, labels, draws=50) for each in (images, *found.images))
    assert late < early < before
    assert found.used.tolist() == [[200] * 6, [3000] * 6]


def test_each_image_has_its_own_search_whatever_its_batch() -> None:
    model, images = convnet(), noise_images(3, 3, 16, 16)
    labels = model(images).argmax(1)
    attack = RayS(ball=LINF, queries=60)
    assert torch.equal(attack(model, images, labels)[:1], attack(model, images[:1], labels[:1]))


def test_blocks_cover_every_value_once_a_stage_and_begin_again() -> None:
    rays = _Exact(RayS(ball=LINF), lambda x: x, torch.full((1, 1, 3, 4), 0.5), torch.tensor([0]))
    one, seen = torch.tensor([0]), []
    for _ in range(1 + 1 + 2 + 4 + 8 + 2):
        seen.append((int(rays.stage), (rays._flipped(one) != rays.signs)[0].nonzero()[:, 0].tolist()))
        rays._next_block(torch.tensor([True]))
    assert [stage for stage, _ in seen] == [-1, 0, 1, 1, *[2] * 4, *[3] * 8, 1, 1]
    assert seen[0][1] == []
    for stage in range(4):
        flipped = [place for at, places in seen[:16] if at == stage for place in places]
        assert flipped == list(range(12))
