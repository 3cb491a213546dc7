"""The L2 certificate, tried on linear classifiers: their true radius is known, and it is tight there."""

import math
from statistics import NormalDist

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor

from vqshield.certificates import (
    ABSTAIN,
    accuracy_bound,
    certify_vote,
    clopper_pearson_lower,
    effective_sigma,
    linf_radius,
    radius,
)
from vqshield.core.errors import InvalidInputError

NORMAL = NormalDist()
SIMULATIONS = 10_000


def most_failures(alpha: float) -> float:
    """alpha of the simulations, and four standard deviations of a binomial."""
    return SIMULATIONS * alpha + 4 * math.sqrt(SIMULATIONS * alpha * (1 - alpha))


def votes(share: float, draws: int, seed: int) -> Tensor:
    """Counts (SIMULATIONS, 2) of draws that are class 0 with the given probability."""
    count = torch.full((SIMULATIONS,), float(draws), dtype=torch.float64)
    zeros = torch.binomial(
        count, torch.full_like(count, share), generator=torch.Generator().manual_seed(seed)
    )
    return torch.stack([zeros, draws - zeros], 1).long()


@pytest.mark.parametrize("alpha", [0.001, 0.05])
@pytest.mark.parametrize("distance", [-0.05, 0.0, 0.001, 0.02, 0.1])
def test_a_linear_classifier_is_falsely_certified_at_most_alpha_of_the_time(
    distance: float, alpha: float
) -> None:
    """x lies at the given distance on the side of class 0, so the vote's true radius is |distance|: a larger
    one, or the other class, is false. At distance 0 every certificate is.
    """
    sigma = 0.05
    share = NORMAL.cdf(distance / sigma)
    found = certify_vote(
        selection_counts=votes(share, 20, seed=1),
        estimation_counts=votes(share, 200, seed=2),
        alpha=alpha,
        sigma_eff=sigma,
    )
    right = 0 if distance > 0 else 1
    false = (found.answers != ABSTAIN) & ((found.answers != right) | (found.radii > abs(distance)))
    assert int(false.sum()) <= most_failures(alpha)


@pytest.mark.parametrize(("size", "sigma", "tau"), [(1, 0.05, 0.05), (1, 0.03, 0.2), (2, 0.05, 0.1)])
def test_the_best_use_of_both_noises_and_all_copies_beats_no_certificate(
    size: int, sigma: float, tau: float
) -> None:
    """A classifier that sees s² noisy copies of a pixel, twice, and weighs them as well as can be."""
    distance, draws, alpha, chunk = 0.02, 100, 0.01, 500
    generator = torch.Generator().manual_seed(3)
    counts = []
    for _ in range(SIMULATIONS // chunk):
        first = sigma * torch.randn(chunk, draws, size**2, generator=generator) + distance
        second = tau * torch.randn(chunk, draws, size**2, generator=generator) + distance
        counts.append(((first / sigma**2 + second / tau**2).sum(-1) > 0).sum(-1))
    top = torch.cat(counts)
    sigma_eff = effective_sigma(sigma=sigma, tau=tau)
    found = radius(counts_top=top, draws=draws, alpha=alpha, sigma_eff=sigma_eff, copies=size)
    assert int((found > distance).sum()) <= most_failures(alpha)
    # Were the factor or the second noise forgotten, the certificate would be false most of the time.
    for wrong in (min(sigma, tau) / size if sigma == tau else None, sigma_eff if size > 1 else None):
        if wrong is not None:
            careless = radius(counts_top=top, draws=draws, alpha=alpha, sigma_eff=wrong)
            assert int((careless > distance).sum()) > most_failures(alpha)


@given(st.floats(-0.2, 0.2), st.floats(0, 0.3), st.floats(0.01, 1), st.sampled_from([1, 2, 3]))
def test_the_single_draw_bound_is_attained_by_a_linear_classifier(
    distance: float, shift: float, sigma: float, copies: int
) -> None:
    assume(copies * distance / sigma < 5)  # nearer to 1, a float says too little about its distance from 1
    p, moved = (NORMAL.cdf(copies * d / sigma) for d in (distance, distance - shift))
    found = accuracy_bound(p_y=p, radius=shift, sigma_eff=sigma, copies=copies)
    assert found == pytest.approx(moved, rel=1e-6, abs=1e-12)


@given(
    st.integers(1, 10**5), st.data(), st.floats(1e-6, 0.5), st.floats(0.001, 1), st.sampled_from([1, 2, 3])
)
def test_radius_is_the_formula(
    draws: int, data: st.DataObject, alpha: float, sigma: float, copies: int
) -> None:
    count = data.draw(st.integers(0, draws))
    found = radius(counts_top=count, draws=draws, alpha=alpha, sigma_eff=sigma, copies=copies)
    lower = clopper_pearson_lower(count=count, draws=draws, delta=alpha)
    assert isinstance(found, float)
    assert found == pytest.approx(sigma * NORMAL.inv_cdf(lower) / copies if lower > 0.5 else 0, rel=1e-9)
    if found > 0:  # there, the single-draw bound has just come down to a half
        half = accuracy_bound(p_y=lower, radius=found, sigma_eff=sigma, copies=copies)
        assert half == pytest.approx(0.5)


def test_radius_of_a_tensor_and_its_monotonicities() -> None:
    counts = torch.arange(1001)
    found = radius(counts_top=counts, draws=1000, alpha=0.001, sigma_eff=0.1)
    assert bool((found.diff() >= 0).all())
    assert bool((found[:501] == 0).all())
    for count in (0, 500, 700, 1000):
        alone = radius(counts_top=count, draws=1000, alpha=0.001, sigma_eff=0.1)
        assert float(found[count]) == pytest.approx(alone, rel=1e-10)
    surer = radius(counts_top=counts, draws=1000, alpha=0.0001, sigma_eff=0.1)
    assert bool((surer <= found).all())
    noisier = radius(counts_top=counts, draws=1000, alpha=0.001, sigma_eff=0.2)
    assert torch.allclose(noisier, 2 * found)
    copied = radius(counts_top=counts, draws=1000, alpha=0.001, sigma_eff=0.1, copies=3)
    assert torch.allclose(copied, found / 3)


def test_the_vote_follows_selection_and_measures_on_estimation() -> None:
    selection = torch.tensor([[9, 1, 0], [0, 2, 8], [5, 5, 0], [3, 3, 4]])
    estimation = torch.tensor([[100, 0, 0], [100, 0, 0], [90, 10, 0], [20, 20, 60]])
    found = certify_vote(
        selection_counts=selection, estimation_counts=estimation, alpha=0.001, sigma_eff=0.1, copies=2
    )
    assert found.answers.tolist() == [0, ABSTAIN, 0, ABSTAIN]
    for image, count in ((0, 100), (2, 90)):
        alone = radius(counts_top=count, draws=100, alpha=0.001, sigma_eff=0.1, copies=2)
        assert float(found.radii[image]) == pytest.approx(alone)
        lower = clopper_pearson_lower(count=count, draws=100, delta=0.001)
        assert float(found.probabilities[image]) == pytest.approx(lower)
    assert found.radii[[1, 3]].tolist() == [0, 0]
    labels = torch.tensor([0, 0, 1, 2])
    assert found.certified(labels, radius=0.0).tolist() == [True, False, False, False]
    assert found.certified(labels, radius=float(found.radii[0])).tolist() == [False] * 4


def test_the_radius_at_the_papers_noise_is_small() -> None:
    """The specification's orientation: about 0.19/255 in L-inf, with every one of 100,000 draws right."""
    sigma_eff = effective_sigma(sigma=4 / 255, tau=4 / 255)
    found = radius(counts_top=100_000, draws=100_000, alpha=0.001, sigma_eff=sigma_eff)
    assert 255 * linf_radius(radius=found, values=3 * 32 * 32) == pytest.approx(0.19, abs=0.01)
    assert torch.equal(linf_radius(radius=torch.tensor([0.0, 4.0]), values=16), torch.tensor([0, 1]).double())


def test_accuracy_bound_of_a_tensor_and_at_the_ends() -> None:
    p = torch.tensor([0.0, 0.3, 0.99, 1.0], dtype=torch.float64)
    found = accuracy_bound(p_y=p, radius=0.1, sigma_eff=0.2)
    assert found.tolist() == [accuracy_bound(p_y=float(v), radius=0.1, sigma_eff=0.2) for v in p]
    assert (float(found[0]), float(found[3])) == (0, 1)
    assert torch.allclose(accuracy_bound(p_y=p, radius=0.0, sigma_eff=0.2), p)
    assert bool((found <= p).all())


COUNTS = torch.tensor([[5, 5], [9, 1]])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"selection_counts": torch.tensor([[5, 5]])}, r"\(1, 2\) and \(2, 2\)"),
        ({"estimation_counts": torch.tensor([[5, 5], [5, 6]])}, r"rows that add up to \[10, 11\]"),
        ({"estimation_counts": torch.zeros(2, 2, dtype=torch.int64)}, r"rows that add up to \[0\]"),
        ({"estimation_counts": torch.tensor([[11, -1], [5, 5]])}, "minimum -1"),
        ({"estimation_counts": torch.ones(2, 2)}, "dtype torch.float32"),
        ({"estimation_counts": torch.tensor([5, 5])}, r"shape \(2,\)"),
        ({"alpha": 0.0}, "alpha=0.0 should lie strictly between"),
        ({"sigma_eff": 0.0}, "sigma_eff=0.0 should be > 0"),
        ({"copies": 0.5}, "copies=0.5 should be >= 1"),
    ],
)
def test_bad_votes_are_named(changes: dict[str, object], message: str) -> None:
    good = {"selection_counts": COUNTS, "estimation_counts": COUNTS, "alpha": 0.001, "sigma_eff": 0.1}
    with pytest.raises(InvalidInputError, match=message):
        certify_vote(**{**good, **changes})


def test_no_images_give_no_votes() -> None:
    none = torch.zeros(0, 10, dtype=torch.int64)
    found = certify_vote(selection_counts=none, estimation_counts=none, alpha=0.001, sigma_eff=0.1)
    assert found.answers.shape == found.radii.shape == (0,)


def test_bad_numbers_are_named() -> None:
    with pytest.raises(InvalidInputError, match=r"p_y=1\.1"):
        accuracy_bound(p_y=1.1, radius=0.1, sigma_eff=0.1)
    with pytest.raises(InvalidInputError, match="radius=-1"):
        accuracy_bound(p_y=0.9, radius=-1, sigma_eff=0.1)
    with pytest.raises(InvalidInputError, match="values=0"):
        linf_radius(radius=1.0, values=0)
    with pytest.raises(InvalidInputError, match="counts_top=11"):
        radius(counts_top=11, draws=10, alpha=0.001, sigma_eff=0.1)
