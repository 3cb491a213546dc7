"""APGD in an L1 ball: sparse steps that reach the optimum, and a better one than steps along one value."""

import pytest
import torch
from conftest import noise_images
from torch import Tensor
from toys import convnet, two_classes

from vqshield.attacks import APGD, L1, PGD, cross_entropy, margin
from vqshield.attacks.apgd import L1Steps


def best_linear(images: Tensor, weight: Tensor, eps: float) -> Tensor:
    """The largest fall of weight·x in the ball: the heaviest values first, each as far as [0, 1] allows."""
    falls = []
    for image in images:
        room = torch.where(weight > 0, image, 1 - image).flatten()
        order, left, fall = weight.abs().flatten().argsort(descending=True), eps, 0.0
        for place in order.tolist():
            used = min(left, float(room[place]))
            fall, left = fall + used * float(weight.abs().flatten()[place]), left - used
        falls.append(fall)
    return torch.tensor(falls)


@pytest.mark.parametrize("eps", [0.5, 3.0])
def test_on_a_linear_model_it_comes_near_the_optimum(eps: float) -> None:
    model, weight = two_classes(3, 4, 4)
    images, labels = noise_images(5, 3, 4, 4), torch.zeros(5, dtype=torch.int64)
    found = APGD(ball=L1(eps), steps=60, loss="margin", random_start=False)(model, images, labels)
    fall = ((images - found) * weight).flatten(1).sum(1)
    share = fall / best_linear(images, weight, eps)
    assert float(share.min()) > 0.8  # steps stay as long as a tenth of the radius
    assert float(share.mean()) > 0.93


def test_it_beats_pgd_of_equal_steps() -> None:
    model, images = convnet(), noise_images(16, 3, 16, 16)
    labels, ball = model(images).argmax(1), L1(6.0)

    def reached(attack: APGD | PGD) -> float:
        return float(margin(model(attack(model, images, labels)).detach(), labels).mean())

    ours = reached(APGD(ball=ball, steps=30, loss="margin"))
    assert ours > reached(PGD(ball=ball, steps=30, loss="margin"))


def test_a_step_has_its_length_and_changes_as_many_values_as_it_should() -> None:
    images = torch.full((2, 1, 5, 5), 0.5)
    images[1, 0, 0] = 1.0  # cannot rise
    steps = L1Steps(images, eps=2.0, steps=100)
    slopes = torch.arange(25, 0, -1.0).view(1, 1, 5, 5).expand(2, 1, 5, 5)
    step = steps.move(images, slopes)
    assert (step != 0).flatten(1).sum(1).tolist() == [5, 5]  # a fifth of the values
    assert torch.allclose(step.abs().flatten(1).sum(1), torch.tensor([2.0, 2.0]))
    assert torch.equal(step[0, 0, 0] != 0, torch.ones(5, dtype=torch.bool))
    assert torch.equal(step[1, 0, 1] != 0, torch.ones(5, dtype=torch.bool)), "the first five are at the top"


def test_steps_get_sparser_while_that_pays_and_shorter_afterwards() -> None:
    images = torch.full((1, 1, 10, 10), 0.5)
    steps = L1Steps(images, eps=2.0, steps=100)
    best = images.clone()
    best[0, 0, 0, :3] = 0.9
    slopes = torch.arange(100, 0, -1.0).view(1, 1, 10, 10)
    assert not bool(steps.look(3, best).any()), "not a checkpoint"
    assert not bool(steps.look(4, best).any()), "fewer values than before: go on"
    step = steps.move(images, slopes)
    assert int((step != 0).sum()) == 2
    assert float(step.abs().sum()) == pytest.approx(2.0)
    assert bool(steps.look(8, best).all()), "settled: back to the best point, with shorter steps"
    assert float(steps.move(images, slopes).abs().sum()) == pytest.approx(2.0 / 1.5)


def test_it_climbs_as_high_as_the_authors_own() -> None:
    theirs = pytest.importorskip("pyautoattack.autopgd_base")
    model, images, ball = convnet(), noise_images(16, 3, 16, 16), L1(4.0)
    labels = model(images).argmax(1)
    found = APGD(ball=ball, steps=40, random_start=False, judgements=1)(model, images, labels)
    with torch.random.fork_rng():
        attack = theirs.APGDAttack(model, n_iter=40, norm="L1", eps=4.0, seed=0, loss="ce", device="cpu")
        attack.init_hyperparam(images)
        reached = attack.attack_single_run(images, labels)[0]
    ours, other = (float(cross_entropy(model(each).detach(), labels).mean()) for each in (found, reached))
    assert ours > 0.95 * other
