"""Gaussian mixtures: the same as scikit-learn's from the same start, planted ones found again."""

import math
import warnings

import pytest
import torch
from torch import Tensor
from torch.distributions import MultivariateNormal

from vqshield.core.errors import InvalidInputError
from vqshield_paper.kl import Mixture, MixtureSettings, fit_mixture
from vqshield_paper.kl.covariances import Dense, Diagonal, Shared, estimate, kinds
from vqshield_paper.kl.fitting import _start, improve

MEANS = torch.tensor([[0.0, 0.0, 0.0], [4.0, 4.0, 0.0], [-4.0, 4.0, 3.0]], dtype=torch.float64)
SPREADS = torch.tensor([[1.0, 0.5, 0.8], [0.3, 1.0, 0.6], [0.7, 0.7, 1.2]], dtype=torch.float64)
WEIGHTS = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
PLANTED = Mixture(WEIGHTS, MEANS, Diagonal(SPREADS))


def planted(count: int = 2000, seed: int = 0) -> Tensor:
    return PLANTED.sample(count=count, seed=seed)


def precisions(mixture: Mixture, kind: str) -> Tensor:
    """The inverse covariances, in scikit-learn's shape for that kind."""
    covariances = mixture.covariances
    if isinstance(covariances, Diagonal):
        inverse = covariances.deviations**-2
        return inverse[:, 0] if kind == "spherical" else inverse
    if isinstance(covariances, Shared):
        return covariances.inverse @ covariances.inverse.T
    assert isinstance(covariances, Dense)
    return covariances.inverses @ covariances.inverses.mT


def sklearns(mixture: Mixture, kind: str, values: Tensor, *, iterations: int, tolerance: float):
    """scikit-learn's fit from that mixture."""
    reference = pytest.importorskip("sklearn.mixture").GaussianMixture(
        len(mixture.weights),
        covariance_type=kind,
        tol=tolerance,
        max_iter=iterations,
        weights_init=mixture.weights.numpy(),
        means_init=mixture.means.numpy(),
        precisions_init=precisions(mixture, kind).numpy(),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it need not have converged
        return reference.fit(values.numpy())


@pytest.mark.parametrize("kind", kinds())
@pytest.mark.parametrize("iterations", [1, 7, 100])
def test_the_same_start_leads_where_scikit_learn_ends(kind: str, iterations: int) -> None:
    values = planted()
    settings = MixtureSettings(components=4, covariance=kind, iterations=iterations)
    start = _start(values, settings, 3, 0)
    found = improve(values, start, settings)
    reference = sklearns(start, kind, values, iterations=iterations, tolerance=settings.tolerance)
    assert (found.iterations, found.converged) == (reference.n_iter_, reference.converged_)
    assert found.log_likelihood == pytest.approx(reference.score(values.numpy()), abs=1e-6)
    fresh = planted(50, seed=9)
    expected = torch.from_numpy(reference.score_samples(fresh.numpy()))
    torch.testing.assert_close(found.mixture.log_prob(fresh), expected, atol=1e-6, rtol=0)
    torch.testing.assert_close(found.mixture.means, torch.from_numpy(reference.means_), atol=1e-6, rtol=0)


@pytest.mark.parametrize("kind", ["full", "diag"])
def test_a_planted_mixture_is_found_again(kind: str) -> None:
    found = fit_mixture(planted(20_000), settings=MixtureSettings(components=3, covariance=kind)).mixture
    order = torch.cdist(MEANS, found.means).argmin(1)
    assert sorted(order.tolist()) == [0, 1, 2]
    torch.testing.assert_close(found.means[order], MEANS, atol=0.06, rtol=0)
    torch.testing.assert_close(found.weights[order], WEIGHTS, atol=0.02, rtol=0)
    identity = torch.eye(3, dtype=torch.float64)
    for component, spread in zip(order.tolist(), SPREADS, strict=True):
        coloured = found.covariances.colour(identity, component)  # rows: Lᵀ
        torch.testing.assert_close(coloured.T @ coloured, spread.square().diag(), atol=0.13, rtol=0)


def test_the_density_is_the_textbook_formula() -> None:
    values = planted(40, seed=1)
    shares = torch.softmax(planted(40, seed=2), 1)
    means = shares.T @ values / shares.sum(0)[:, None]
    covariances = estimate("full", values, shares, means, reg_covar=1e-6)
    assert isinstance(covariances, Dense)
    expected = torch.zeros(40, dtype=torch.float64)
    for weight, mean, factor in zip(WEIGHTS, means, covariances.factors, strict=True):
        expected += weight * MultivariateNormal(mean, scale_tril=factor).log_prob(values).exp()
    torch.testing.assert_close(Mixture(WEIGHTS, means, covariances).log_prob(values), expected.log())


@pytest.mark.parametrize("kind", kinds())
def test_distances_undo_colouring_and_the_determinant_belongs_to_them(kind: str) -> None:
    values = planted(500)
    mixture = fit_mixture(values, settings=MixtureSettings(components=2, covariance=kind)).mixture
    noise = planted(5, seed=4)
    identity = torch.eye(3, dtype=torch.float64)
    halves = mixture.covariances.half_log_determinants().expand(2)
    for component, mean in enumerate(mixture.means):
        coloured = mean + mixture.covariances.colour(noise, component)
        found = mixture.covariances.distances(coloured, mixture.means)[:, component]
        torch.testing.assert_close(found, noise.square().sum(1))
        expected = torch.linalg.slogdet(mixture.covariances.colour(identity, component)).logabsdet
        torch.testing.assert_close(halves[component], expected)


def test_the_density_stays_finite_far_away() -> None:
    far = torch.full((1, 3), 1e4, dtype=torch.float64)
    assert math.isfinite(float(PLANTED.log_prob(far)))


def test_samples_follow_the_mixture() -> None:
    values = planted(100_000)
    mean = WEIGHTS @ MEANS
    second = WEIGHTS @ (SPREADS.square() + MEANS.square())
    deviation = (second - mean.square()).sqrt() / math.sqrt(len(values))
    assert bool(((values.mean(0) - mean).abs() < 4 * deviation).all())
    torch.testing.assert_close(values.square().mean(0), second, rtol=0.02, atol=0)


def test_a_sample_depends_on_its_number_alone() -> None:
    mixture = fit_mixture(planted(), settings=MixtureSettings(components=3, covariance="full")).mixture
    whole = mixture.sample(count=50, seed=2)
    parts = [mixture.sample(count=count, seed=2, first=first) for first, count in ((0, 7), (7, 1), (8, 42))]
    torch.testing.assert_close(torch.cat(parts), whole, atol=1e-12, rtol=0)
    assert not torch.equal(mixture.sample(count=50, seed=3), whole)


def test_a_seed_repeats_a_fit_and_the_global_generator_is_left_alone() -> None:
    values, state = planted(), torch.random.get_rng_state()
    settings = MixtureSettings(components=5, restarts=2)
    one, two, other = (fit_mixture(values, settings=settings, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(one.mixture.means, two.mixture.means)
    assert one.log_likelihood == two.log_likelihood
    assert not torch.equal(one.mixture.means, other.mixture.means)
    assert torch.equal(torch.random.get_rng_state(), state)


def test_the_likeliest_restart_counts() -> None:
    values, settings = planted(400), MixtureSettings(components=6, restarts=4)
    each = [improve(values, _start(values, settings, 0, number), settings) for number in range(4)]
    likelihoods = [found.log_likelihood for found in each]
    assert len(set(likelihoods)) == 4
    assert fit_mixture(values, settings=settings).log_likelihood == max(likelihoods)


def test_more_iterations_never_lower_the_likelihood() -> None:
    values = planted(500)
    settings = [MixtureSettings(components=5, iterations=n, tolerance=0.0) for n in (1, 2, 4, 8, 16)]
    found = [fit_mixture(values, settings=each, seed=5).log_likelihood for each in settings]
    assert found == sorted(found)


@pytest.mark.parametrize("kind", kinds())
def test_equal_values_do_no_harm(kind: str) -> None:
    found = fit_mixture(torch.full((20, 3), 0.5), settings=MixtureSettings(components=4, covariance=kind))
    assert math.isfinite(found.log_likelihood)
    assert bool(torch.isfinite(found.mixture.sample(count=10, seed=0)).all())


def test_float32_is_nearly_float64() -> None:
    values = planted()
    found = [
        fit_mixture(values, settings=MixtureSettings(components=3, covariance="full", dtype=dtype))
        for dtype in ("float32", "float64")
    ]
    assert found[0].mixture.means.dtype == torch.float32
    assert found[0].log_likelihood == pytest.approx(found[1].log_likelihood, abs=1e-3)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("kind", kinds())
def test_a_gpu_finds_the_same(kind: str) -> None:
    settings = MixtureSettings(components=3, covariance=kind)
    here, there = (fit_mixture(planted().to(place), settings=settings) for place in ("cpu", "cuda"))
    assert there.log_likelihood == pytest.approx(here.log_likelihood, abs=1e-6)
    samples = there.mixture.sample(count=9, seed=1).cpu()
    torch.testing.assert_close(samples, here.mixture.sample(count=9, seed=1), atol=1e-4, rtol=0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"components": 0}, "components=0"),
        ({"covariance": "round"}, "covariance='round'.*diag, full"),
        ({"reg_covar": -1.0}, "reg_covar=-1"),
        ({"tolerance": math.nan}, "tolerance=nan"),
        ({"iterations": 2.5}, "iterations=2.5"),
        ({"restarts": 0}, "restarts=0"),
        ({"dtype": "float16"}, "dtype='float16'"),
    ],
)
def test_settings_that_make_no_sense_are_named(changes: dict, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        MixtureSettings(**changes)


def test_values_that_make_no_sense_are_named() -> None:
    with pytest.raises(InvalidInputError, match=r"5 values.*components=8"):
        fit_mixture(planted(5))
    with pytest.raises(InvalidInputError, match=r"shape \(9,\)"):
        fit_mixture(torch.zeros(9))
    with pytest.raises(InvalidInputError, match="int64"):
        fit_mixture(torch.zeros(9, 2, dtype=torch.int64))
    with pytest.raises(InvalidInputError, match="nan or infinity"):
        fit_mixture(torch.full((9, 2), math.nan))
    with pytest.raises(InvalidInputError, match="seed=-1"):
        fit_mixture(planted(), seed=-1)
    with pytest.raises(InvalidInputError, match=r"shape \(4, 2\).*\(n, 3\)"):
        PLANTED.log_prob(torch.zeros(4, 2, dtype=torch.float64))
    with pytest.raises(InvalidInputError, match=r"float32.*float64"):
        PLANTED.log_prob(torch.zeros(4, 3))
    with pytest.raises(InvalidInputError, match="count=0"):
        PLANTED.sample(count=0, seed=0)


def test_a_singular_covariance_asks_for_a_ridge() -> None:
    flat = planted(100) * torch.tensor([1.0, 1.0, 0.0], dtype=torch.float64)
    with pytest.raises(InvalidInputError, match="reg_covar=0 should be larger"):
        fit_mixture(flat, settings=MixtureSettings(components=1, covariance="full", reg_covar=0.0))
