import re

import pytest
import torch
from conftest import noise_images
from torch import Tensor
from toys import Noisy, convnet, two_classes

import vqshield as vq
from vqshield.attacks import APGD, EOT, L2, PGD, Linf, cross_entropy, margin
from vqshield.attacks.apgd import _Schedule, checkpoints


@pytest.mark.parametrize("loss", ["cross-entropy", "margin"])
@pytest.mark.parametrize("random_start", [True, False])
def test_on_a_linear_model_it_finds_the_optimum(loss: str, random_start: bool) -> None:
    model, weight = two_classes(3, 4, 4)
    images, labels = 0.3 + 0.4 * noise_images(5, 3, 4, 4), torch.zeros(5, dtype=torch.int64)
    best = {Linf(0.01): images - 0.01 * weight.sign(), L2(0.02): images - 0.02 * weight / weight.norm()}
    for ball, expected in best.items():
        attack = APGD(ball=ball, steps=30, loss=loss, random_start=random_start)
        assert float((attack(model, images, labels) - expected).abs().max()) < 1e-3 * ball.eps


def test_checkpoints_are_the_papers() -> None:
    assert checkpoints(100) == [22, 41, 57, 70, 80, 87, 93, 99]
    assert checkpoints(1) == [1]
    assert all(1 <= number <= 7 for number in checkpoints(7))


def test_steps_are_halved_by_either_condition() -> None:
    """Three images over 22 + 19 steps: one always rises, one seldom, one rises without a new best."""
    schedule = _Schedule(100, torch.zeros(3))
    for number in range(1, 23):
        rose = torch.tensor([True, number % 2 == 0, True])
        halve = schedule.halve(number, rose=rose, highest=torch.tensor([1.0, 1.0, 1.0]))
        assert number == 22 or not halve.any()
    assert halve.tolist() == [False, True, False]
    for number in range(23, 42):
        halve = schedule.halve(number, rose=torch.tensor([True] * 3), highest=torch.tensor([2.0, 1.0, 1.0]))
    assert halve.tolist() == [False, False, True], "the second was halved at the last checkpoint already"


@pytest.mark.parametrize("ball", [Linf(0.05), L2(0.8)], ids=str)
@pytest.mark.parametrize("name", ["cross-entropy", "margin", "dlr"])
@pytest.mark.parametrize("steps", [10, 40])
def test_it_is_at_least_as_good_as_pgd_of_equal_steps(ball, name: str, steps: int) -> None:
    model, images = convnet(), noise_images(32, 3, 16, 16)
    labels = model(images).argmax(1)

    def reached(found: Tensor) -> tuple[float, float]:
        logits = model(found).detach()
        accuracy = float((logits.argmax(1) == labels).double().mean())
        return accuracy, float(margin(logits, labels).mean())

    ours = reached(APGD(ball=ball, steps=steps, loss=name)(model, images, labels))
    for step in ("eps/10", "eps/4"):
        theirs = reached(PGD(ball=ball, steps=steps, step=step, loss=name)(model, images, labels))
        assert ours[0] <= theirs[0]
        if name != "dlr":  # which does not aim at the margin itself
            assert ours[1] >= theirs[1] - 0.02


def test_restarts_never_do_worse() -> None:
    model, images, labels = convnet(), noise_images(16, 3, 16, 16), torch.arange(16) % 5
    worths = [
        margin(model(APGD(ball=Linf(0.02), steps=4, restarts=r)(model, images, labels)), labels).detach()
        for r in (1, 4)
    ]
    assert bool((worths[1] >= worths[0] - 1e-6).all())
    assert float(worths[1].sum()) > float(worths[0].sum())


def test_a_wrong_answer_beats_a_higher_loss() -> None:
    """Near the image the answer is wrong by a hair; farther up the loss is higher, but the answer right."""

    def model(x: Tensor) -> Tensor:
        place = x.mean((1, 2, 3))
        near = (place - 0.5).abs() < 0.05
        rest = torch.where(near, -9.0, 0.99) + place
        return torch.stack([place * 0 + 2, torch.where(near, 1.6, 0.99) + place, rest, rest], 1)

    images, labels = torch.full((1, 1, 2, 2), 0.5), torch.tensor([0])
    assert int(model(images).argmax()) != 0
    assert int(model(images + 0.2).argmax()) == 0
    assert float(cross_entropy(model(images + 0.2), labels)) > float(cross_entropy(model(images), labels))
    found = APGD(ball=Linf(0.2), steps=8, random_start=False)(model, images, labels)
    assert int(model(found).argmax()) != 0


def test_on_a_random_model_more_draws_give_a_better_attack() -> None:
    model, images, labels = convnet(), noise_images(32, 3, 16, 16), torch.arange(32) % 5
    reached = {}
    for draws in (1, 20):
        noisy = EOT(Noisy(model, 0.5), draws=draws)
        found = APGD(ball=Linf(0.03), steps=15)(noisy, images, labels)
        reached[draws] = float(cross_entropy(model(found).detach(), labels).mean())
    assert reached[20] > reached[1]


def test_it_breaks_a_defended_model_through_eot() -> None:
    images = noise_images(32, 1, 8, 8)
    labels = (images.mean((1, 2, 3)) > 0.5).long()
    model = lambda x: torch.stack([0.5 - x.mean((1, 2, 3)), x.mean((1, 2, 3)) - 0.5], 1) * 50  # noqa: E731
    defended = vq.Defended(model, vq.SWRD(size=2, codes=8, seed=1))
    found = APGD(ball=Linf(0.1), steps=10)(EOT(defended, draws=2), images, labels)
    assert float((defended(found).argmax(1) == labels).double().mean()) < 0.1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"steps": 0}, "steps=0 should be >= 1"),
        ({"restarts": 0}, "restarts=0 should be >= 1"),
        ({"judgements": 0}, "judgements=0 should be >= 1"),
        ({"loss": "hinge"}, "loss='hinge' is unknown; choose one of cross-entropy, dlr, margin"),
        ({"seed": -1}, "seed=-1"),
    ],
)
def test_bad_settings_are_named(settings, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        APGD(ball=Linf(0.1), **settings)
