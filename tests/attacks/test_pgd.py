import re

import pytest
import torch
from conftest import noise_images
from torch import Tensor, nn
from toys import convnet, two_classes

import vqshield as vq
from vqshield.attacks import EOT, L2, PGD, Linf, cross_entropy, margin
from vqshield.attacks.losses import targeted_margin, wrong_classes
from vqshield.core.errors import InvalidInputError


def linear(channels: int = 3, side: int = 8, classes: int = 4) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Flatten(), nn.Linear(channels * side * side, classes)).eval()


def test_the_usual_step_is_a_quarter_of_eps_and_finds_more_than_the_papers() -> None:
    """20 steps of eps/10 go back and forth where 20 of eps/4 arrive (issue 35, A.12)."""
    held, model = vq.data.sample(40), vq.classifiers.small_cifar10()
    images, labels = held.floats(), held.labels

    def attacked(**settings) -> Tensor:
        return PGD(ball=Linf(2 / 255), steps=20, **settings)(model, images, labels)

    def right(found: Tensor) -> int:
        with torch.no_grad():
            return int((model(found).argmax(1) == labels).sum())

    usual, papers = attacked(), attacked(step="eps/10")
    assert torch.equal(usual, attacked(step=2 / 255 / 4))
    assert torch.equal(papers, attacked(step=2 / 255 / 10))
    assert right(usual) < right(papers)


def test_zero_gradient_moves_nothing() -> None:
    images = noise_images(2, 3, 8, 8)
    attack = PGD(ball=Linf(0.1), steps=3, random_start=False)
    found = attack(lambda x: x.flatten(1)[:, :4] * 0, images, torch.tensor([0, 1]))
    assert torch.equal(found, images)


def test_random_start_depends_on_the_seed_alone() -> None:
    images, labels = noise_images(2, 3, 8, 8), torch.tensor([0, 1])

    def start(seed: int) -> Tensor:
        return PGD(ball=Linf(0.2), steps=1, step=0.0, seed=seed)(linear(), images, labels)

    assert torch.equal(start(1), start(1))
    assert not torch.equal(start(1), start(2))
    moved = (start(1) - images)[(images > 0.2) & (images < 0.8)]
    assert float(moved.mean()) == pytest.approx(0, abs=0.03)
    assert float(moved.std()) == pytest.approx(0.2 / 3**0.5, rel=0.15)


@pytest.mark.parametrize(
    "more", [{"restarts": 4}, {"candidates": 2}, {"restarts": 2, "candidates": 2}], ids=str
)
def test_restarts_and_candidates_never_do_worse(more) -> None:
    """The best is chosen by what the attack is after, wrong answers and margin, whatever loss it climbs."""
    images, labels, model = noise_images(32, 3, 16, 16), torch.arange(32) % 5, convnet()
    ball = Linf(0.02)

    def reached(**settings) -> tuple[Tensor, Tensor]:
        logits = model(PGD(ball=ball, steps=4, step=0.03, **settings)(model, images, labels)).detach()
        return (logits.argmax(1) != labels).float(), margin(logits, labels)

    (few_wrong, few), (many_wrong, many) = reached(), reached(**more)
    assert bool((many_wrong >= few_wrong).all())
    assert bool((many >= few - 1e-6).all())
    assert float(many.sum()) > float(few.sum())


def test_candidates_are_spread_over_the_second_half_and_end_with_the_last() -> None:
    assert PGD(ball=Linf(0.1), steps=20)._judged_steps() == {20}
    assert PGD(ball=Linf(0.1), steps=20, candidates=4)._judged_steps() == {20, 18, 15, 13}
    assert PGD(ball=Linf(0.1), steps=2, candidates=9)._judged_steps() == {2}


def test_on_a_random_model_candidates_are_judged_on_fresh_draws() -> None:
    """Every call of this model is a draw: 10 for the gradients, and two for each of three candidates."""
    calls = []

    def model(images: Tensor) -> Tensor:
        calls.append(images.requires_grad)
        return images.flatten(1)[:, :4]

    PGD(ball=Linf(0.1), steps=10, candidates=3, judgements=2)(
        model, noise_images(2, 3, 8, 8), torch.arange(2)
    )
    assert (calls.count(True), calls.count(False)) == (10, 6)


@pytest.mark.parametrize(
    ("schedule", "lengths"),
    [
        ("constant", [1, 1, 1, 1]),
        ("linear", [1, 0.75, 0.5, 0.25]),
        ("cosine", [1, (1 + 0.5**0.5) / 2, 0.5, (1 - 0.5**0.5) / 2]),
    ],
)
def test_schedules_shrink_the_step(schedule: str, lengths) -> None:
    """Brightness is the loss: every step goes up by its length, so the distances are the lengths' sums."""

    def model(images: Tensor) -> Tensor:
        return torch.stack([-images.mean((1, 2, 3)), images.mean((1, 2, 3))], 1)

    images, labels = torch.full((1, 1, 2, 2), 0.1), torch.tensor([0])
    attack = PGD(ball=Linf(0.9), steps=4, step=0.1, schedule=schedule, random_start=False)
    moved = float((attack(model, images, labels) - images).max())
    assert moved == pytest.approx(0.1 * sum(lengths), abs=1e-6)


def test_momentum_carries_on_over_a_bump() -> None:
    """Downhill for one step, then up again: without momentum the climb turns back at the foot."""

    def model(images: Tensor) -> Tensor:
        place = images.mean((1, 2, 3))
        hill = torch.where(place < 0.35, place, 0.7 - place) + 10 * (place - 0.45).clamp(min=0)
        return torch.stack([-hill, hill], 1)

    images, labels = torch.full((1, 1, 2, 2), 0.1), torch.tensor([0])
    reached = [
        float(
            PGD(ball=Linf(0.9), steps=12, step=0.1, momentum=momentum, random_start=False)(
                model, images, labels
            ).max()
        )
        for momentum in (0.0, 0.9)
    ]
    assert reached[0] < 0.45
    assert reached[1] > 0.9


@pytest.mark.parametrize("loss", ["cross-entropy", "margin"])
@pytest.mark.parametrize("momentum", [0.0, 0.75])
def test_on_a_linear_model_pgd_finds_the_optimum_in_both_balls(loss: str, momentum: float) -> None:
    model, weight = two_classes(3, 4, 4)
    images, labels = 0.3 + 0.4 * noise_images(5, 3, 4, 4), torch.zeros(5, dtype=torch.int64)
    best = {Linf(0.1): images - 0.1 * weight.sign(), L2(0.2): images - 0.2 * weight / weight.norm()}
    for ball, expected in best.items():
        attack = PGD(ball=ball, steps=60, step=ball.eps / 2, momentum=momentum, loss=loss)
        assert float((attack(model, images, labels) - expected).abs().max()) < 1e-3 * ball.eps


def test_an_l2_start_lies_on_the_sphere() -> None:
    images = 0.4 + 0.2 * noise_images(3, 3, 8, 8)
    found = PGD(ball=L2(0.5), steps=1, step=0.0)(linear(), images, torch.arange(3))
    assert torch.allclose((found - images).flatten(1).norm(dim=1), torch.full((3,), 0.5), atol=1e-5)


class Random(nn.Module):
    """Adds ±1 to the logits in turn: a random model with a known mean."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[int] = []

    def forward(self, images: Tensor) -> Tensor:
        self.seen.append(len(images))
        signs = torch.arange(len(images)) // 2 % 2 * 2 - 1  # the draws of a batch of two alternate
        return images.flatten(1)[:, :3] * signs[:, None]


def test_eot_averages_gradients_or_logits() -> None:
    images, labels = noise_images(2, 1, 2, 2), torch.tensor([0, 2])
    every = EOT(Random(), draws=4, average="gradients")(images)
    assert every.shape == (4, 2, 3)
    mean = EOT(Random(), draws=4, average="logits")(images)
    assert torch.allclose(mean, torch.zeros(2, 3))
    single = torch.stack([cross_entropy(draw, labels) for draw in every]).mean(0)
    assert torch.allclose(cross_entropy(every, labels), single)


def test_eot_uses_fresh_draws_for_each_copy() -> None:
    model = EOT(vq.defend(linear(), "prd", codes=4, seed=1), draws=5)
    logits = model(noise_images(2, 3, 8, 8))
    assert len(torch.unique(logits[:, 0], dim=0)) == 5


def test_eot_gradient_is_the_mean_of_single_draw_gradients() -> None:
    images, labels = noise_images(2, 3, 8, 8).requires_grad_(), torch.tensor([1, 2])
    defended = vq.defend(linear(), "swrd", size=2, codes=4, seed=1)
    (averaged,) = torch.autograd.grad(cross_entropy(EOT(defended, draws=3)(images), labels).sum(), images)
    singles = []
    for draw in range(3):
        logits = defended(images, streams=torch.arange(2) + 2 * draw)  # the streams EOT took: 0 … 5 in order
        singles.append(torch.autograd.grad(cross_entropy(logits, labels).sum(), images)[0])
    assert torch.allclose(averaged, torch.stack(singles).mean(0), atol=1e-6)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Linf(-0.1), "eps=-0.1 should be from 0 to 1"),
        (lambda: Linf(8), "eps=8 should be from 0 to 1"),
        (lambda: PGD(ball=Linf(0.1), steps=0), "steps=0 should be >= 1"),
        (lambda: PGD(ball=Linf(0.1), restarts=0), "restarts=0"),
        (lambda: PGD(ball=Linf(0.1), step=-1.0), "step=-1.0"),
        (
            lambda: PGD(ball=Linf(0.1), step="eps/0"),
            "step='eps/0' should be a length such as 2/255, or a share",
        ),
        (
            lambda: PGD(ball=Linf(0.1), step="long"),
            "step='long' should be a length such as 2/255, or a share",
        ),
        (lambda: PGD(ball=Linf(0.1), candidates=0), "candidates=0 should be >= 1"),
        (lambda: PGD(ball=Linf(0.1), judgements=0), "judgements=0 should be >= 1"),
        (lambda: PGD(ball=Linf(0.1), momentum=-0.5), "momentum=-0.5 should be >= 0"),
        (
            lambda: PGD(ball=Linf(0.1), schedule="step"),
            "schedule='step' is unknown; choose one of constant, cosine, linear",
        ),
        (
            lambda: PGD(ball=Linf(0.1), loss="hinge"),
            "loss='hinge' is unknown; choose one of cross-entropy, dlr, margin",
        ),
        (lambda: EOT(nn.Identity(), draws=0), "draws=0"),
        (
            lambda: EOT(nn.Identity(), average="median"),
            "average='median' is unknown; choose one of gradients, logits",
        ),
        (
            lambda: PGD(ball=Linf(0.1))(linear(), noise_images(2, 3, 8, 8), torch.arange(3)),
            "labels of shape (3,)",
        ),
        (
            lambda: PGD(ball=Linf(0.1))(linear(), noise_images(2, 3, 8, 8) * 2, torch.arange(2)),
            "images contain",
        ),
        (
            lambda: PGD(ball=Linf(0.1))(
                lambda x: x.flatten(1)[:1, :4], noise_images(2, 3, 8, 8), torch.arange(2)
            ),
            "logits of shape (1, 4) should be (..., 2, classes)",
        ),
    ],
)
def test_bad_settings_are_named(make, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        make()


def test_pgd_on_the_bare_classifier_breaks_it_and_ste_breaks_the_defended_one() -> None:
    """A smoke alarm: the two attack routes work end to end on a model that learned something."""
    images = noise_images(32, 1, 8, 8)
    labels = (images.mean((1, 2, 3)) > 0.5).long()
    model = lambda x: torch.stack([0.5 - x.mean((1, 2, 3)), x.mean((1, 2, 3)) - 0.5], 1) * 50  # noqa: E731
    attack = PGD(ball=Linf(0.1), steps=10)
    defended = vq.Defended(model, vq.SWRD(size=2, codes=8, seed=1))
    for target, source in ((model, model), (defended, EOT(defended, draws=2))):
        answers = target(attack(source, images, labels)).argmax(1)
        assert float((answers == labels).double().mean()) < 0.1


def test_each_restart_climbs_towards_another_wrong_class() -> None:
    """The likeliest at the image first; with more restarts than wrong classes they come round again."""
    images, labels, model = noise_images(6, 3, 8, 8), torch.arange(6) % 4, linear()
    expected = wrong_classes(model(images), labels)
    assert expected.shape == (3, 6)
    assert not bool((expected == labels).any())
    assert bool((expected[0] == model(images).scatter(1, labels[:, None], -99.0).argmax(1)).all())
    attack = PGD(ball=Linf(0.1), steps=1, loss="targeted-margin", restarts=4)
    targets = attack._targets(model, images, labels)
    logits = model(images)
    for number in range(4):
        each = attack._raised(targets, number, torch.arange(6))
        target = expected[number % 3]
        lead = logits.gather(1, target[:, None])[:, 0] - logits.gather(1, labels[:, None])[:, 0]
        assert torch.equal(each(logits, labels), lead)


def test_a_targeted_climb_reaches_its_class() -> None:
    images, labels, model = 0.3 + 0.4 * noise_images(6, 3, 8, 8), torch.arange(6) % 4, linear()
    target = wrong_classes(model(images), labels)[0]
    found = PGD(ball=Linf(0.3), steps=20, step=0.05, loss="targeted-margin")(model, images, labels)
    reached = model(found).detach()
    assert torch.equal(reached.argmax(1), target)


def test_targets_are_those_of_the_mean_over_draws_and_lost_draws_stop_pulling() -> None:
    logits = torch.tensor([[[0.0, 9.0, 1.0]], [[0.0, -9.0, 1.0]]])  # two draws of one image
    labels = torch.tensor([0])
    assert wrong_classes(logits, labels).tolist() == [[2], [1]]
    assert targeted_margin(logits, labels, torch.tensor([1])).tolist() == [-2.0], "9 counts as 5"
    with pytest.raises(InvalidInputError, match="'targeted-margin' needs at least 2 classes, not 1"):
        wrong_classes(torch.zeros(1, 1), labels)
