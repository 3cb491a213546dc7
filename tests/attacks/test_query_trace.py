"""Tracing a query attack: one search, looked at after given numbers of calls, every call counted."""

import re

import pytest
import torch
from conftest import noise_images
from torch import Tensor, nn
from toys import Noisy, convnet

from vqshield.attacks import EOT, InBasis, Linf, QueryAttack, RayS, Square
from vqshield.attacks.eot import draws_a_call
from vqshield.core.errors import InvalidInputError

BALL = Linf(0.02)
ATTACKS: list[QueryAttack] = [Square(ball=BALL), RayS(ball=BALL)]


class Counted(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model, self.rows = model, 0

    def forward(self, images: Tensor) -> Tensor:
        self.rows += len(images)
        return self.model(images)


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda each: type(each).__name__)
@pytest.mark.parametrize("draws", [1, 3])
@pytest.mark.parametrize("scale", [0.0, 0.3])
def test_every_draw_is_a_call_and_no_mark_is_passed(attack: QueryAttack, draws: int, scale: float) -> None:
    inner = Counted(Noisy(convnet(), scale))
    model = EOT(inner, draws=draws) if draws > 1 else inner
    images, labels = noise_images(2, 3, 16, 16), torch.tensor([0, 1])
    found = attack.trace(model, images, labels, (60, 121))
    assert found.calls == (60, 121)
    assert bool((found.used <= torch.tensor([[60], [121]])).all())
    assert inner.rows == int(found.used[-1].sum())
    for each in found.images:
        assert float((each - images).abs().max()) <= BALL.eps + 1e-6


def test_the_last_mark_is_the_attack_itself() -> None:
    """Tracing changes nothing: what is found at the end is what a call with as many queries finds."""
    model, images, labels = convnet(), noise_images(3, 3, 16, 16), torch.tensor([0, 1, 2])
    for attack in (Square(ball=BALL, queries=92), RayS(ball=BALL, queries=100)):
        traced = attack.trace(model, images, labels, (50, 100))
        assert torch.equal(traced.images[-1], attack(model, images, labels))
        random = [Noisy(model, 0.3, seed=4) for _ in range(2)]
        traced = attack.trace(random[0], images, labels, (50, 100))
        assert torch.equal(traced.images[-1], attack(random[1], images, labels))


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda each: type(each).__name__)
@pytest.mark.parametrize("draws", [1, 5])
def test_lost_images_leave_where_they_may_and_every_call_is_counted(attack: QueryAttack, draws: int) -> None:
    """Of a model that is far from class 0 for dark images, and near it for others: the first are lost."""
    images = noise_images(8, 3, 8, 8)
    images[:4] *= 0.1
    inner, labels, calls = Counted(Noisy(TwoKinds(), 0.05)), torch.zeros(8, dtype=torch.int64), (500, 900)
    model = EOT(inner, draws=draws) if draws > 1 else inner
    found = attack.trace(model, images, labels, calls, drop_lost=True)
    assert bool((found.used <= torch.tensor(calls)[:, None]).all())
    assert inner.rows == int(found.used[-1].sum())
    lost, going = found.used[:, :4], found.used[:, 4:]
    assert bool((lost[0] == lost[1]).all()), "nothing is asked about them after they left"
    assert int(lost.max()) < 120 < int(going[0].min()) < int(going[1].min())
    answers = TwoKinds()(found.images[0]).argmax(1)
    assert answers[:4].tolist() == [1] * 4


def test_none_leaves_where_finding_out_would_take_too_many_calls() -> None:
    images, labels = noise_images(4, 3, 8, 8) * 0.1, torch.zeros(4, dtype=torch.int64)
    for attack in ATTACKS:
        models = [Noisy(TwoKinds(), 0.05, seed=1) for _ in range(2)]
        traces = [
            attack.trace(each, images, labels, (100, 300), drop_lost=drop_lost)
            for each, drop_lost in zip(models, (False, True), strict=True)
        ]
        assert torch.equal(traces[0].used, traces[1].used)
        assert torch.equal(traces[0].images[1], traces[1].images[1])


class TwoKinds(nn.Module):
    """Class 1 by far for dark images; for others class 0, by less the brighter their upper half is."""

    def forward(self, images: Tensor) -> Tensor:
        dark = images.mean((1, 2, 3)) < 0.2
        lead = torch.where(dark, 60.0, images[:, :, :4].mean((1, 2, 3)) - 1)
        return torch.stack([torch.zeros_like(lead), lead], 1)


@pytest.mark.parametrize(
    ("calls", "message"),
    [
        ((), "calls=() should ascend, the first at least 10, for Square with 1 draws a query"),
        ((100, 50), "calls=(100, 50) should ascend"),
        ((50, 50), "calls=(50, 50) should ascend"),
        ((9, 50), "calls=(9, 50) should ascend, the first at least 10"),
    ],
)
def test_marks_that_cannot_be_are_refused(calls: tuple[int, ...], message: str) -> None:
    images, labels = noise_images(1, 3, 16, 16), torch.tensor([0])
    with pytest.raises(InvalidInputError, match=re.escape(message)):
        Square(ball=BALL).trace(convnet(), images, labels, calls)


def test_no_images_need_no_calls() -> None:
    found = RayS(ball=BALL).trace(convnet(), torch.empty(0, 3, 16, 16), torch.empty(0).long(), (10, 20))
    assert found.used.shape == (2, 0)


def test_draws_are_found_behind_other_wrappers() -> None:
    model = convnet()
    assert draws_a_call(model) == 1
    assert draws_a_call(InBasis(EOT(model, draws=4), "block2")) == 4
    assert draws_a_call(lambda images: images) == 1
