import copy

import pytest
import torch
from conftest import noise_images
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import vqshield as vq
from vqshield.attacks import EOT, PGD, Linf, cross_entropy


def linear(channels: int = 3, side: int = 8, classes: int = 4) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Flatten(), nn.Linear(channels * side * side, classes)).eval()


@given(
    eps=st.floats(0, 1),
    steps=st.integers(1, 4),
    step=st.one_of(st.none(), st.floats(0, 1)),
    random_start=st.booleans(),
    restarts=st.integers(1, 2),
    defended=st.booleans(),
    seed=st.integers(0, 2**64 - 1),
)
def test_the_budget_is_kept_and_nothing_else_is_touched(
    eps, steps, step, random_start, restarts, defended, seed
) -> None:
    images, labels = noise_images(3, 3, 8, 8, seed=seed % 1000), torch.tensor([0, 1, 3])
    model: nn.Module = linear()
    if defended:
        model = EOT(vq.defend(model, "prd", codes=4, iterations=2, seed=1), draws=2)
    model.train()
    before, weights = torch.get_rng_state(), copy.deepcopy(model.state_dict())
    attack = PGD(
        ball=Linf(eps), steps=steps, step=step, random_start=random_start, restarts=restarts, seed=seed
    )
    found = attack(model, images, labels)
    assert float((found - images).abs().max()) <= eps + 1e-6
    assert 0 <= float(found.min()) <= float(found.max()) <= 1
    assert found.isfinite().all()
    assert not found.requires_grad
    assert torch.equal(torch.get_rng_state(), before)
    assert model.training
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())
    assert all(p.requires_grad and p.grad is None for p in model.parameters())


def test_on_a_linear_two_class_model_pgd_finds_the_optimum() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        weight = torch.randn(48)
    model = nn.Sequential(nn.Flatten(), nn.Linear(48, 2))
    with torch.no_grad():
        model[1].weight.copy_(torch.stack([weight, -weight]))
    images, labels = 0.3 + 0.4 * noise_images(5, 3, 4, 4), torch.zeros(5, dtype=torch.int64)
    found = PGD(ball=Linf(0.1), steps=20)(model, images, labels)
    best = images - 0.1 * weight.view(3, 4, 4).sign()
    assert float((found - best).abs().max()) < 1e-6


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


def test_restarts_never_lower_the_loss() -> None:
    images, labels = noise_images(8, 3, 8, 8), torch.arange(8) % 4
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Flatten(), nn.Linear(192, 32), nn.ReLU(), nn.Linear(32, 4))
    losses = [
        cross_entropy(
            model(PGD(ball=Linf(0.05), steps=2, restarts=r)(model, images, labels)), labels
        ).detach()
        for r in (1, 4)
    ]
    assert bool((losses[1] >= losses[0] - 1e-6).all())
    assert float(losses[1].sum()) > float(losses[0].sum())


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
    import re

    with pytest.raises(ValueError, match=re.escape(message)):
        make()


def test_an_empty_batch_is_returned() -> None:
    empty = torch.empty(0, 3, 8, 8)
    assert PGD(ball=Linf(0.1))(linear(), empty, torch.empty(0, dtype=torch.int64)).shape == empty.shape


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
