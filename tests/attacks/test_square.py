import re

import pytest
import torch
from conftest import noise_images
from torch import Tensor, nn
from toys import Noisy, convnet, two_classes

import vqshield as vq
from vqshield.attacks import EOT, L2, FastAnswers, Linf, RandomNoise, Square, ball, margin
from vqshield.attacks.balls import Ball
from vqshield.attacks.square import _Climb, _L2Moves, bump
from vqshield.quantization.noise import Draw

BALLS = {"linf": Linf(0.05), "l2": L2(1.0)}


def worth(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    with torch.no_grad():
        return margin(model(images), labels)


@pytest.mark.parametrize("norm", BALLS)
def test_it_raises_the_margin_with_every_query_and_more_than_noise_does(norm: str) -> None:
    model, images = convnet(), noise_images(16, 3, 16, 16)
    labels = model(images).argmax(1)
    reached = [
        worth(model, Square(ball=BALLS[norm], queries=q)(model, images, labels), labels) for q in (2, 40, 400)
    ]
    assert float(reached[0].mean()) < float(reached[1].mean()) < float(reached[2].mean())
    noise = RandomNoise(ball=BALLS[norm], tries=50, judgements=1)(model, images, labels)
    assert bool((reached[2] > worth(model, noise, labels)).all())
    assert float(reached[2].mean()) > float(worth(model, images, labels).mean()) + 0.1


@pytest.mark.parametrize("drop_lost", [False, True])
def test_rounding_hides_nothing_where_the_model_is_not_random(drop_lost: bool) -> None:
    model, images = convnet(), noise_images(16, 3, 16, 16)
    labels, rounded = model(images).argmax(1), FastAnswers(model, "bf16")
    assert not torch.equal(rounded(images), model(images))
    attack = Square(ball=BALLS["linf"], queries=60)
    expected = attack(model, images, labels, drop_lost=drop_lost)
    assert torch.equal(attack(rounded, images, labels, drop_lost=drop_lost), expected)


@pytest.mark.parametrize(("norm", "share"), [("linf", 0.95), ("l2", 0.7)])
def test_on_a_linear_model_it_comes_near_the_optimum(norm: str, share: float) -> None:
    model, weight = two_classes(1, 6, 6)
    images, labels = 0.4 + 0.2 * noise_images(4, 1, 6, 6), torch.zeros(4, dtype=torch.int64)
    budget = ball(norm, 0.1)
    best = 2 * 0.1 * (weight.abs().sum() if norm == "linf" else weight.norm())
    found = Square(ball=budget, queries=1500)(model, images, labels)
    gained = worth(model, found, labels) - worth(model, images, labels)
    assert bool((gained <= best * 1.001).all())
    assert bool((gained >= best * share).all())


def test_linf_changes_are_at_the_extremes_and_l2_uses_its_whole_budget() -> None:
    model, labels = convnet(), torch.zeros(4, dtype=torch.int64)
    images = 0.4 + 0.2 * noise_images(4, 3, 16, 16)
    change = (Square(ball=Linf(0.1), queries=50)(model, images, labels) - images).abs()
    assert torch.allclose(change, torch.full_like(change, 0.1), atol=1e-6)
    found = Square(ball=L2(0.5), queries=50)(model, images, labels)
    assert torch.allclose((found - images).flatten(1).norm(dim=1), torch.full((4,), 0.5), atol=1e-4)


def test_a_bump_is_the_papers() -> None:
    """Sums over the rings of 1/(j+1)², upper half up and lower half down, of unit length."""
    by_hand = torch.zeros(5, 5, dtype=torch.float64)
    for sign, first, height in ((1, 0, 2), (-1, 2, 3)):
        for row in range(height):
            for column in range(5):
                ring = max(abs(row - height // 2), abs(column - 5 // 2))
                by_hand[first + row, column] = sign * sum(1 / (j + 1) ** 2 for j in range(ring, 5 // 2 + 1))
    assert torch.allclose(bump(5), by_hand / by_hand.norm())
    for side in range(1, 12):
        assert float(bump(side).norm()) == pytest.approx(1)


def test_each_image_gets_its_own_changes_whatever_its_batch() -> None:
    model, image = convnet(), noise_images(1, 3, 16, 16)
    labels = torch.zeros(3, dtype=torch.int64)
    for budget in BALLS.values():
        attack = Square(ball=budget, queries=20)
        together = attack(model, image.repeat(3, 1, 1, 1), labels)
        assert not torch.equal(together[0], together[1])
        assert torch.allclose(attack(model, image, labels[:1])[0], together[0], atol=1e-6)


class Counted(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model, self.calls = model, 0

    def forward(self, images: Tensor) -> Tensor:
        self.calls += 1
        return self.model(images)


@pytest.mark.parametrize("queries", [2, 3, 17])
def test_it_asks_no_more_than_its_queries_and_judgements(queries: int) -> None:
    images, labels = noise_images(2, 3, 16, 16), torch.tensor([0, 1])
    bare = Counted(convnet())
    Square(ball=Linf(0.01), queries=queries)(bare, images, labels)
    assert bare.calls == queries
    noisy = Counted(Noisy(convnet(), 0.1))
    Square(ball=Linf(0.01), queries=queries, judgements=1)(noisy, images, labels)
    assert noisy.calls <= queries + 5


def test_it_stops_where_nothing_is_left_to_gain() -> None:
    model = Counted(nn.Sequential(nn.Flatten(), nn.Linear(192, 2)))
    with torch.no_grad():
        model.model[1].weight.zero_()
        model.model[1].bias.copy_(torch.tensor([0.0, 9.0]))
    Square(ball=Linf(0.1))(model, noise_images(2, 3, 8, 8), torch.zeros(2, dtype=torch.int64))
    assert model.calls == 2


def test_on_a_random_model_a_change_must_win_twice_and_the_held_image_is_asked_again() -> None:
    """The model says what the script says, whatever it is asked about."""
    script = [0.1, 0.3, 0.9, 0.1, 0.1, 0.8, 0.6, 0.7, 0.5, 0.1, 0.2, 0.3]
    answers, asked = iter(script), []

    def model(images: Tensor) -> Tensor:
        asked.append(float(images.mean()))
        return torch.tensor([[0.0, next(answers)]])

    still = Square(ball=Linf(0.0))  # the images that it starts from are those given
    held = _Climb(still, model, torch.full((1, 1, 2, 2), 0.0), torch.tensor([0]), 20)
    assert held.random
    assert held.value.tolist() == pytest.approx([0.2])
    steps = [  # the change, what is held after it and its value
        (1.0, 0.0, 0.2),  # wins by luck, does not win again: thrown away
        (2.0, 0.0, 0.4),  # loses: the held image is asked again, (0.1 + 0.3 + 0.8)/3
        (3.0, 3.0, 0.7),  # wins twice
        (4.0, 3.0, 0.1),  # loses: what the held one won by is forgotten, what it got now counts
        (5.0, 5.0, 0.3),  # so that the next can win
    ]
    for change, kept, value in steps:
        held.challenge(torch.full((1, 1, 2, 2), change))
        assert float(held.images.mean()) == kept
        assert held.value.tolist() == pytest.approx([value])
    assert asked == [0, 0, 1, 1, 2, 0, 3, 3, 4, 3, 5, 5]
    assert held.used == len(script)


def test_an_l2_change_moves_the_budget_from_one_square_into_another() -> None:
    images, draw = torch.full((6, 3, 12, 12), 0.5).double(), Draw(3, torch.arange(6))
    moves = _L2Moves(L2(0.5), images, draw)
    before = moves.start() - images
    after = moves.propose(images + before, 0.07, 0) - images  # squares of side 3
    assert torch.allclose(after.flatten(1).norm(dim=1), torch.full((6,), 0.5).double())
    for i in range(6):
        changed = (after[i] != before[i]).any(0)
        emptied = (after[i] == 0).all(0) & changed
        assert int(changed.sum()) in (9, *range(12, 19)), "one square, or two that may overlap"
        assert int((changed & ~emptied).sum()) == 9
        assert torch.equal(after[i][:, ~changed], before[i][:, ~changed])


class LuckyOnce(nn.Module):
    """Answers as wrong as can be when the first change is tried and tried again, and the truth ever after."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model, self.calls = Noisy(model, 1e-3), 0

    def forward(self, images: Tensor) -> Tensor:
        self.calls += 1
        luck = torch.tensor([-4.0, *[0.0] * 4]) if self.calls in (3, 4) else 0.0
        return self.model(images) + luck


def test_a_stale_lucky_value_does_not_keep_good_changes_out() -> None:
    model, images, labels = convnet(), noise_images(8, 3, 16, 16), torch.zeros(8, dtype=torch.int64)
    attack = Square(ball=Linf(0.05), queries=400)
    start = worth(model, Square(ball=Linf(0.05), queries=2)(model, images, labels), labels)
    lucky = worth(model, attack(LuckyOnce(model), images, labels), labels)
    honest = worth(model, attack(Noisy(model, 1e-3), images, labels), labels)
    assert float((honest - start).mean()) > 0.3
    assert float((lucky - start).mean()) > 0.7 * float((honest - start).mean())


def test_it_gets_on_under_noise_and_further_with_more_draws() -> None:
    model, images, labels = convnet(), noise_images(8, 3, 16, 16), torch.zeros(8, dtype=torch.int64)
    reached = [worth(model, Square(ball=Linf(0.05), queries=2)(model, images, labels), labels).mean()]
    for draws in (4, 64):
        noisy = EOT(Noisy(model, 0.2), draws=draws)
        found = Square(ball=Linf(0.05), queries=200, judgements=8)(noisy, images, labels)
        reached.append(worth(model, found, labels).mean())
    assert float(reached[0]) + 0.05 < float(reached[1])
    assert float(reached[1]) + 0.1 < float(reached[2])


def test_it_hurts_a_defended_model_without_any_gradient() -> None:
    images = noise_images(16, 1, 8, 8)
    labels = (images.mean((1, 2, 3)) > 0.5).long()
    model = lambda x: torch.stack([0.5 - x.mean((1, 2, 3)), x.mean((1, 2, 3)) - 0.5], 1) * 50  # noqa: E731
    defended = vq.Defended(model, vq.PRD(codes=8, seed=1))
    found = Square(ball=Linf(0.1), queries=100)(EOT(defended, draws=2), images, labels)
    assert float((defended(found).argmax(1) == labels).double().mean()) < 0.2


class Other(Ball):
    norm, most = "l7", 1.0
    project = start = steepest = length = None  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"queries": 1}, "queries=1 should be >= 2"),
        ({"p_init": 1.5}, "p_init=1.5 should be from 0 to 1"),
        ({"judgements": 0}, "judgements=0 should be >= 1"),
        ({"seed": 2**64}, "seed="),
        ({"ball": Other(0.1)}, "is none that Square knows; it knows linf, l2"),
    ],
)
def test_bad_settings_are_named(settings, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        Square(**{"ball": Linf(0.1), **settings})


def test_rounding_is_not_taken_for_randomness() -> None:
    """A server that batches requests rounds each answer differently; a step stays one query."""
    model, _ = two_classes(3, 8, 8)
    images, labels = torch.full((4, 3, 8, 8), 0.5), torch.zeros(4, dtype=torch.int64)
    attack = Square(ball=Linf(0.02))
    exact = attack.trace(model, images, labels, (40,))
    rounded = attack.trace(Noisy(model, 1e-7), images, labels, (40,))
    assert torch.equal(rounded.images[0], exact.images[0])
