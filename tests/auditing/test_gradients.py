"""R10's measurement: exact where nothing is random, and the same draws at both ends where something is."""

import dataclasses

import numpy as np
import pytest
import torch
from conftest import noise_images
from torch import Tensor, nn

import vqshield as vq
from vqshield.attacks import cross_entropy
from vqshield.auditing import Agreement, Uncertain
from vqshield.auditing.gradients import (
    Differences,
    NoGradientError,
    differences,
    expected_gradient,
    needed_draws,
    sign_agreement,
)
from vqshield.core.serialization import to_plain

SIDE, COUNT = 6, 12
LABELS = torch.arange(COUNT) % 3


def linear(scale: float = 1.0) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = nn.Sequential(nn.Flatten(), nn.Linear(SIDE**2, 3)).double().eval()
    with torch.no_grad():
        model[1].weight.mul_(scale)
    return model


def grey() -> Tensor:
    """36 greys an image, all different, in random order; no step below reaches 0 or 1."""
    order = noise_images(COUNT, SIDE**2).argsort(1)
    return torch.linspace(0.3, 0.7, SIDE**2).double()[order].view(COUNT, 1, SIDE, SIDE)


def identity() -> vq.Defense:
    """As many codes as pixels and no noise: every pixel is its own centre."""
    return vq.RandDisc(codes=SIDE**2, sigma=0.0, tau=0.0, init="random", seed=1)


def exact_gradient(model: nn.Module, images: Tensor) -> Tensor:
    """(softmax − one-hot) times the weights."""
    wrong = model(images).softmax(1) - torch.nn.functional.one_hot(LABELS, 3)
    return (wrong @ model[1].weight).detach().view_as(images)


def measured(model: nn.Module, defense: vq.Defense, **changes) -> Differences:
    chosen = {"step": 0.01, "directions": 10, "draws": 2, "batch": 50, "seed": 3, **changes}
    return differences(model, defense, grey(), LABELS, **chosen)


def test_changes_are_halves_of_the_difference_between_both_ends() -> None:
    model = linear()
    found = measured(model, identity(), step=0.2)
    assert found.signs.shape == (10, COUNT, 1, SIDE, SIDE)
    assert set(found.signs.flatten().tolist()) == {-1.0, 1.0}
    for number, signs in enumerate(found.signs):
        up, down = (cross_entropy(model(grey() + way * 0.2 * signs), LABELS) for way in (1, -1))
        assert torch.allclose(found.changes[number], (up - down) / 2, atol=1e-5)
    assert float(found.variances.max()) == 0.0, "nothing is random"


def test_an_exact_gradient_correlates_fully_and_its_opposite_in_reverse() -> None:
    model = linear()
    found, gradient = measured(model, identity()), exact_gradient(model, grey())
    agreement = found.agreement([gradient, gradient])
    assert agreement.pooled > 0.9999
    assert agreement.median > 0.9999
    assert agreement.reliability == pytest.approx(1.0)
    assert found.agreement([-gradient, -gradient]).pooled == pytest.approx(-agreement.pooled)
    assert found.agreement([1e-3 * gradient] * 2).pooled == pytest.approx(agreement.pooled), (
        "its length is nothing"
    )


def test_a_random_gradient_correlates_with_nothing() -> None:
    found = measured(linear(), identity(), directions=40)
    random = torch.randn(COUNT, 1, SIDE, SIDE, generator=torch.Generator().manual_seed(0)).double()
    spread = 1 / (40 * COUNT) ** 0.5  # of the correlation between so many independent values
    assert abs(found.agreement([random, random]).pooled) < 4 * spread
    assert found.agreement([torch.zeros_like(random)] * 2).pooled == 0.0


def test_the_surrogates_gradient_is_exact_where_quantization_is_the_identity() -> None:
    model = linear()
    for surrogate, tolerance in (("ste", 1e-6), ("soft:temperature=1e-6,centres=means", 1e-6)):
        found = expected_gradient(model, identity(), surrogate, grey(), LABELS, draws=7)
        assert torch.allclose(found, exact_gradient(model, grey()), atol=tolerance), surrogate


def test_a_model_that_is_not_random_is_asked_twice_and_says_the_same_as_if_asked_often() -> None:
    model, defense = linear(), vq.RandDisc(codes=4, seed=8)
    assert needed_draws(model, identity(), grey(), 512) == 2
    assert needed_draws(model, defense, grey(), 512) == 512
    gradient = exact_gradient(model, grey())
    often, twice = (measured(model, identity(), draws=draws) for draws in (8, 2))
    assert torch.allclose(twice.changes, often.changes, atol=1e-12)
    assert float(twice.variances.max()) == 0.0
    agreements = [each.agreement([gradient] * 2) for each in (often, twice)]
    assert agreements[1].corrected == pytest.approx(agreements[0].corrected)
    assert agreements[1].reliability == 1.0


def test_the_expected_gradient_is_the_mean_over_draws() -> None:
    model, defense = linear(), vq.RandDisc(codes=4, seed=8)
    found = expected_gradient(model, defense, "ste", grey(), LABELS, draws=6, at_once=3)
    copies = grey().repeat(6, 1, 1, 1).requires_grad_()
    logits = vq.Defended(model, defense.reseeded(8))(copies)
    loss = cross_entropy(logits, LABELS.repeat(6)).sum()
    singly = torch.autograd.grad(loss, copies)[0].view(6, *grey().shape)
    assert torch.allclose(found, singly.mean(0), atol=1e-12)


def test_both_ends_see_the_same_draws() -> None:
    """So a step of nothing changes nothing, however much the draws differ."""
    found = measured(linear(30.0), vq.RandDisc(codes=4, sigma=0.1, tau=0.1, seed=8), step=0.0)
    assert float(found.changes.abs().max()) == 0.0
    assert float(found.variances.max()) == 0.0


def test_the_spread_of_draws_tells_how_far_to_trust() -> None:
    """The variance of a mean over draws falls as their number grows; reliability rises towards one."""
    model, defense = linear(5.0), vq.RandDisc(codes=4, sigma=0.1, tau=0.1, seed=8)
    few, many = (measured(model, defense, step=0.05, draws=draws) for draws in (4, 64))
    ratio = float(few.variances.mean() / many.variances.mean())
    assert 8 < ratio < 32, "16 on average"
    gradient = exact_gradient(model, grey())
    low, high = (
        few.agreement([gradient, gradient]).reliability,
        many.agreement([gradient, gradient]).reliability,
    )
    assert low < high <= 1
    assert high > 0.5


def test_variances_are_those_of_the_mean() -> None:
    model, defense = linear(5.0), vq.RandDisc(codes=4, sigma=0.1, tau=0.1, seed=8)
    found = measured(model, defense, directions=1, draws=9, seed=21)
    halves = []
    ends = [
        vq.Defended(model, defense.reseeded(21))((grey() + way * 0.01 * found.signs[0]).repeat(9, 1, 1, 1))
        for way in (1, -1)
    ]
    up, down = (cross_entropy(end, LABELS.repeat(9)).view(9, COUNT) for end in ends)
    halves = ((up - down) / 2).detach()
    assert torch.allclose(found.changes[0], halves.mean(0))
    assert torch.allclose(found.variances[0], halves.var(0) / 9)


def test_a_seed_repeats_the_measurement_and_the_batch_does_not_matter() -> None:
    model, defense = linear(), vq.RandDisc(codes=4, seed=8)
    first = measured(model, defense)
    for batch in (1, 5, 1000):
        again = measured(model, defense, batch=batch)
        assert torch.equal(again.signs, first.signs)
        assert torch.allclose(again.changes, first.changes, atol=1e-12)
    assert not torch.equal(measured(model, defense, seed=4).signs, first.signs)


def test_a_step_that_is_cut_off_at_the_range_is_predicted_as_it_was_taken() -> None:
    model, images = linear(0.01), noise_images(COUNT, 1, SIDE, SIDE).double().round()  # all 0 or 1
    found = differences(model, identity(), images, LABELS, step=0.3, directions=10, draws=2, batch=50, seed=1)
    wrong = model(images).softmax(1) - torch.nn.functional.one_hot(LABELS, 3)
    gradient = (wrong @ model[1].weight).detach().view_as(images)
    assert found.agreement([gradient, gradient]).pooled > 0.999


def test_agreement_is_pearsons_correlation() -> None:
    images = torch.full((3, 1, 2, 2), 0.5).double()
    signs = torch.where(noise_images(7, 3, 1, 2, 2) > 0.5, 1.0, -1.0).double()
    changes, gradient = noise_images(7, 3, seed=1).double(), noise_images(3, 1, 2, 2, seed=2).double()
    found = Differences(
        images=images, labels=torch.arange(3), signs=signs, step=0.1, draws=5, changes=changes,
        variances=torch.full((7, 3), 0.01).double(),
    )  # fmt: skip
    predicted = 0.1 * (signs * gradient).flatten(2).sum(2)
    agreement = found.agreement([gradient, gradient])
    expected = np.corrcoef(predicted.flatten(), changes.flatten())[0, 1]
    assert agreement.pooled == pytest.approx(expected)
    own = [np.corrcoef(predicted[:, i], changes[:, i])[0, 1] for i in range(3)]
    assert agreement.median == pytest.approx(np.median(own), abs=1e-6)
    assert agreement.reliability == pytest.approx(1 - 0.01 / float(changes.square().mean()))
    assert list(to_plain(agreement)) == [
        "pooled", "median", "reliability", "images", "directions", "draws", "step",
        "gradient_reliability", "corrected", "error",
    ]  # fmt: skip
    assert (agreement.images, agreement.directions, agreement.draws, agreement.step) == (3, 7, 5, 0.1)


def noisy(scale: float, seed: int) -> Agreement:
    """Of a gradient that is right, with noise of that scale in it and in the changes."""
    random = torch.Generator().manual_seed(seed)

    def normals(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=random).double()

    gradient, signs = normals(40, 1, 4, 4), normals(4, 40, 1, 4, 4).sign()
    changes = 0.01 * (signs * gradient).flatten(2).sum(2)
    found = Differences(
        images=torch.full((40, 1, 4, 4), 0.5).double(), labels=torch.zeros(40).long(), signs=signs, step=0.01,
        draws=9, changes=changes + scale * 0.04 * normals(4, 40),
        variances=torch.full((4, 40), (scale * 0.04) ** 2).double(),
    )  # fmt: skip
    return found.agreement([gradient + scale * normals(40, 1, 4, 4) for _ in range(2)])


def test_few_draws_lower_the_raw_correlation_and_not_the_corrected_one() -> None:
    found = [noisy(0.7, seed) for seed in range(50)]
    raw, corrected, errors = (
        torch.tensor([getattr(each, name) for each in found]) for name in ("pooled", "corrected", "error")
    )
    assert float(raw.mean()) < 0.8
    assert float(corrected.mean()) > 0.95
    assert float(corrected.std()) < 2 * float(errors.mean()), "the error says how far off one of them may be"
    assert noisy(0.0, 0).corrected == pytest.approx(1.0)
    assert noisy(0.0, 0).gradient_reliability == pytest.approx(1.0)


def test_signs_count_the_same_for_images_with_small_and_large_losses() -> None:
    """Three of four images have small losses and gradients that point the wrong way: signs tell."""
    model = linear()
    found, gradient = measured(model, identity()), exact_gradient(model, grey())
    assert sign_agreement([(found, gradient)]).mean == 1.0
    assert sign_agreement([(found, -gradient)]).mean == 0.0
    small = torch.where(torch.arange(COUNT) < 9, 1e-3, 1.0).double()
    scaled = dataclasses.replace(found, changes=found.changes * small)
    way = torch.where(torch.arange(COUNT) < 9, -1e-3, 1.0).double()[:, None, None, None]
    assert scaled.agreement([gradient * way] * 2).pooled > 0.99
    assert sign_agreement([(scaled, gradient * way)]).mean == pytest.approx(0.25)


def test_changes_that_may_be_luck_have_no_sign() -> None:
    found = measured(linear(), identity())
    unsure = dataclasses.replace(found, variances=found.changes.square())
    assert sign_agreement([(unsure, exact_gradient(linear(), grey()))]) == Uncertain(0.0, 1.0)


@pytest.mark.parametrize("broken", [lambda logits: logits.detach(), lambda logits: torch.zeros_like(logits)])
def test_a_model_without_a_gradient_is_named(broken) -> None:
    class Detached(nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            return broken(linear()(images))

    with pytest.raises(NoGradientError, match="no gradient towards the images"):
        expected_gradient(Detached(), identity(), "ste", grey(), LABELS, draws=5)


def test_other_errors_of_a_model_stay_what_they_are() -> None:
    class Broken(nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            raise RuntimeError("out of luck")

    with pytest.raises(RuntimeError, match="out of luck"):
        expected_gradient(Broken(), identity(), "ste", grey(), LABELS, draws=5)


def test_a_model_that_no_change_moves_gives_zeros_and_no_nan() -> None:
    """Such as one that is certain of every answer: nothing to correlate with, and nothing to rely on."""
    constant = nn.Sequential(nn.Flatten(), nn.Linear(SIDE**2, 3)).double().requires_grad_(False)
    constant[1].weight.zero_()
    found = measured(constant, vq.RandDisc(codes=4, seed=8))
    agreement = found.agreement([noise_images(COUNT, 1, SIDE, SIDE).double()] * 2)
    assert (agreement.pooled, agreement.median, agreement.reliability) == (0.0, 0.0, 0.0)
