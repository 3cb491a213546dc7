"""The KL diagnostic: closed forms met, the labels' term exact or from above, floors with values."""

import dataclasses
import math
from itertools import pairwise
from statistics import NormalDist

import pytest
import torch
from torch import Tensor
from torch.distributions import MultivariateNormal, kl_divergence

from vqshield.core.errors import InvalidInputError
from vqshield.quantization.noise import Draw, Stage
from vqshield_paper.kl import (
    Diagnostic,
    LabelDivergence,
    Mixture,
    MixtureSettings,
    diagnose,
    divergence,
    label_divergence,
    mixture_kl,
    sorted_codebooks,
)
from vqshield_paper.kl import labels as label_terms
from vqshield_paper.kl.covariances import Dense, Diagonal

TAU = 0.1
SECOND = LabelDivergence(
    value=1.0, standard_error=0.1, bias=0.0, bound=2.0, exact=True, codebooks=2, patches=3, lines=0
)


def normals(*shape: int, seed: int = 0) -> Tensor:
    count = math.prod(shape)
    return Draw(seed, torch.tensor([0])).normals(Stage.CODEBOOK, 0, count).view(shape)


def gaussian(seed: int, dimensions: int = 4) -> tuple[Mixture, MultivariateNormal]:
    mean = normals(dimensions, seed=seed) / 2
    spread = normals(dimensions, dimensions, seed=seed + 50) / 4
    factor = torch.linalg.cholesky(spread @ spread.T + torch.eye(dimensions, dtype=torch.float64))
    inverse = torch.linalg.inv(factor).T
    mixture = Mixture(
        torch.ones(1, dtype=torch.float64), mean[None], Dense(factor[None], inverse[None].contiguous())
    )
    return mixture, MultivariateNormal(mean, scale_tril=factor)


# Sorting


def test_centres_are_sorted_by_length_and_concatenated() -> None:
    books = torch.tensor([[[0.0, 2.0], [1.0, 0.0], [3.0, 4.0]], [[0.0, 0.1], [0.0, 0.0], [-1.0, 0.0]]])
    expected = torch.tensor([[1.0, 0.0, 0.0, 2.0, 3.0, 4.0], [0.0, 0.0, 0.0, 0.1, -1.0, 0.0]])
    assert torch.equal(sorted_codebooks(books), expected)


def test_the_order_of_the_centres_does_not_matter() -> None:
    books = normals(20, 7, 3)
    assert torch.equal(sorted_codebooks(books.flip(1)), sorted_codebooks(books))
    with pytest.raises(InvalidInputError, match=r"shape \(20, 21\)"):
        sorted_codebooks(books.flatten(1))


# Between mixtures


@pytest.mark.parametrize("seed", range(4))
def test_two_gaussians_are_as_far_apart_as_the_closed_form_says(seed: int) -> None:
    (p, true_p), (q, true_q) = gaussian(seed), gaussian(seed + 10)
    found = mixture_kl(p, q, samples=20_000, seed=seed)
    assert abs(found.value - float(kl_divergence(true_p, true_q))) < 4 * found.standard_error


def test_a_mixture_is_no_way_from_itself() -> None:
    means, spreads = normals(3, 5), normals(3, 5, seed=1).exp()
    p = Mixture(torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64), means, Diagonal(spreads))
    found = mixture_kl(p, p, samples=1000)
    assert (found.value, found.standard_error) == (0.0, 0.0)


def test_a_mixture_seen_as_two_halves_is_the_same_mixture() -> None:
    p, _ = gaussian(0)
    halves = Mixture(p.weights.repeat(2) / 2, p.means.repeat(2, 1), Dense(*_twice(p)))
    assert abs(mixture_kl(halves, p, samples=500).value) < 1e-12


def _twice(mixture: Mixture) -> tuple[Tensor, Tensor]:
    assert isinstance(mixture.covariances, Dense)
    return mixture.covariances.factors.repeat(2, 1, 1), mixture.covariances.inverses.repeat(2, 1, 1)


def test_chunks_decide_nothing_and_the_seed_does(monkeypatch: pytest.MonkeyPatch) -> None:
    (p, _), (q, _) = gaussian(0), gaussian(1)
    whole = mixture_kl(p, q, samples=1000, seed=1)
    assert mixture_kl(p, q, samples=1000, seed=1) == whole
    assert mixture_kl(p, q, samples=1000, seed=2) != whole
    monkeypatch.setattr(divergence, "_VALUES_A_CHUNK", 4 * 77)
    assert mixture_kl(p, q, samples=1000, seed=1).value == pytest.approx(whole.value, abs=1e-12)


def test_mixtures_of_different_spaces_are_refused() -> None:
    with pytest.raises(InvalidInputError, match=r"3 dimensions.*4"):
        mixture_kl(gaussian(0)[0], gaussian(0, dimensions=3)[0])
    with pytest.raises(InvalidInputError, match="samples=1"):
        mixture_kl(gaussian(0)[0], gaussian(1)[0], samples=1)


# Labels


def binary(p: float, q: float) -> float:
    return p * math.log(p / q) + (1 - p) * math.log((1 - p) / (1 - q))


def test_two_centres_are_exact() -> None:
    books = torch.tensor([[[0.0, 0.0], [1.0, 0.0]]], dtype=torch.float64).expand(2, -1, -1)
    patches = torch.tensor([[0.45, 0.3], [0.55, 9.0], [0.2, 0.0]], dtype=torch.float64)
    moved = torch.tensor([[0.6, 0.1], [0.55, -9.0], [0.1, 0.0]], dtype=torch.float64)
    cdf = NormalDist(0.5, TAU).cdf
    expected = sum(binary(cdf(a), cdf(b)) for a, b in ((0.45, 0.6), (0.2, 0.1)))
    found = label_divergence(patches=patches, moved=moved, codebooks=books, tau=TAU)
    assert found.value == pytest.approx(expected, rel=1e-12)
    assert (found.exact, found.bias, found.lines, found.patches, found.codebooks) == (True, 0.0, 0, 3, 2)
    assert found.standard_error == pytest.approx(0, abs=1e-12)


def test_a_third_centre_out_of_reach_changes_nothing() -> None:
    two = normals(6, 2, 3) / 5
    patches, moved = normals(9, 3, seed=1) / 5, normals(9, 3, seed=1) / 5 + normals(9, 3, seed=2) / 50
    three = torch.cat([two, torch.full((6, 1, 3), 50.0, dtype=torch.float64)], 1)
    exact = label_divergence(patches=patches, moved=moved, codebooks=two, tau=TAU)
    found = label_divergence(patches=patches, moved=moved, codebooks=three, tau=TAU, lines=4096)
    assert not found.exact
    assert found.value == pytest.approx(exact.value, rel=0.02)
    assert found.standard_error == pytest.approx(exact.standard_error, rel=0.05)


def test_in_one_dimension_every_line_is_exact() -> None:
    books = torch.tensor([[[0.7], [0.1], [0.4], [0.45]]], dtype=torch.float64).expand(2, -1, -1)
    edges = [-math.inf, 0.25, 0.425, 0.575, math.inf]

    def cells(mean: float) -> list[float]:
        below = [NormalDist(mean, TAU).cdf(edge) for edge in edges]
        return [b - a for a, b in pairwise(below)]

    expected = sum(a * math.log(a / b) for a, b in zip(cells(0.3), cells(0.5), strict=True))
    found = label_divergence(
        patches=torch.tensor([[0.3]], dtype=torch.float64),
        moved=torch.tensor([[0.5]], dtype=torch.float64),
        codebooks=books,
        tau=TAU,
        lines=2,
    )
    assert found.value == pytest.approx(expected, rel=1e-10)
    assert found.bias == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_counting_labels_comes_to_the_same(seed: int) -> None:
    centres, patch, moved = (normals(*s, seed=seed + n) / 8 for n, s in enumerate(((5, 2), (1, 2), (1, 2))))
    draws = TAU * normals(400_000, 2, seed=seed + 9)
    shares = [
        torch.cdist(each + draws, centres).argmin(1).bincount(minlength=5) / len(draws)
        for each in (patch, moved)
    ]
    seen = shares[0] > 0
    counted = float((shares[0] * (shares[0] / shares[1]).log())[seen].sum())
    found = label_divergence(
        patches=patch, moved=moved, codebooks=centres.expand(2, -1, -1), tau=TAU, lines=20_000
    )
    assert found.value == pytest.approx(counted, rel=0.03, abs=2e-4)


def test_the_estimate_comes_from_above_and_falls_with_more_lines() -> None:
    books, patches = normals(8, 12, 4) / 3, normals(40, 4, seed=1) / 3
    given = {"patches": patches, "moved": patches + normals(40, 4, seed=2) / 10, "codebooks": books}
    found = [label_divergence(**given, tau=TAU, lines=lines) for lines in (4, 32, 256)]
    assert found[0].value > found[1].value > found[2].value
    assert found[0].bias > found[1].bias > found[2].bias >= 0
    assert found[2].value < found[2].bound


def test_the_bound_holds_however_small_the_noise() -> None:
    books, patches = normals(3, 10, 4) / 3, normals(20, 4, seed=1) / 3
    moved = patches + normals(20, 4, seed=2) / 10
    for tau in (1.0, 0.1, 0.01, 0.001):  # at the last a patch moves by 200 standard deviations
        found = label_divergence(patches=patches, moved=moved, codebooks=books, tau=tau, lines=8)
        assert 0 <= found.value <= found.bound
        assert found.bound == pytest.approx(float((moved - patches).square().sum()) / (2 * tau**2))


def test_nothing_to_tell_apart_is_exactly_zero() -> None:
    patches, books = normals(10, 4), normals(3, 6, 4, seed=1)
    still = label_divergence(patches=patches, moved=patches, codebooks=books, tau=TAU, lines=8)
    assert (still.value, still.standard_error, still.bias) == (0.0, 0.0, 0.0)
    for codes in (1, 2, 3):  # the same centre so many times
        same = books[:, :1].expand(-1, codes, -1)
        found = label_divergence(patches=patches, moved=patches + 0.2, codebooks=same, tau=TAU, lines=8)
        assert found.value == pytest.approx(0, abs=1e-12)


def test_equal_centres_are_one() -> None:
    patches, books = normals(10, 4), normals(3, 6, 4, seed=1)
    given = {"patches": patches, "moved": patches + 0.2, "tau": TAU, "lines": 8}
    twice = label_divergence(codebooks=torch.cat([books, books[:, :2]], 1), **given)
    assert twice.value == pytest.approx(label_divergence(codebooks=books, **given).value, rel=1e-12)


def test_blocks_decide_nothing_and_the_seed_does(monkeypatch: pytest.MonkeyPatch) -> None:
    patches, state = normals(11, 4), torch.random.get_rng_state()
    given = {"patches": patches, "moved": patches + 0.1, "codebooks": normals(3, 6, 4, seed=1), "tau": TAU}
    whole = label_divergence(**given, lines=8, seed=1)
    assert label_divergence(**given, lines=8, seed=1) == whole
    assert label_divergence(**given, lines=8, seed=2) != whole
    monkeypatch.setattr(label_terms, "_VALUES_A_BLOCK", 1)
    assert label_divergence(**given, lines=8, seed=1).value == pytest.approx(whole.value, rel=1e-12)
    assert torch.equal(torch.random.get_rng_state(), state)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tau": 0.0}, "tau=0.0 should be > 0"),
        ({"lines": 7}, "lines=7 should be even"),
        ({"lines": 0}, "lines=0"),
        ({"seed": -1}, "seed=-1"),
        ({"moved": torch.zeros(4, 2)}, r"\(5, 2\) and \(4, 2\)"),
        ({"codebooks": torch.zeros(3, 4, 5)}, r"\(3, 4, 5\) should be \(m, k, 2\)"),
        ({"codebooks": torch.zeros(1, 4, 2)}, "m at least 2"),
        ({"patches": torch.full((5, 2), math.nan)}, "patches contain nan"),
    ],
)
def test_labels_of_nonsense_are_refused(changes: dict, message: str) -> None:
    given = {"patches": torch.zeros(5, 2), "moved": torch.zeros(5, 2), "codebooks": torch.zeros(3, 4, 2)}
    with pytest.raises(InvalidInputError, match=message):
        label_divergence(**{**given, "tau": TAU, **changes})


# The diagnostic


def books(shift: float, seed: int, count: int = 4000) -> Tensor:
    """Codebooks of two centres, far enough apart that sorting never swaps them; Gaussian."""
    far = torch.tensor([[1.0, 0.0], [0.0, 3.0]], dtype=torch.float64)
    return far + 0.05 * normals(count, 2, 2, seed=seed) + shift


ONE = MixtureSettings(components=1, covariance="diag")


@pytest.mark.parametrize("starts", ["shared", "own"])
def test_a_shifted_gaussian_is_found_as_far_as_it_is(starts: str) -> None:
    stages: list[str] = []
    (found,) = diagnose(
        clean=books(0, 1),
        again=books(0, 2),
        moved=[books(0.1, 3)],
        second=[SECOND],
        mixture=ONE,
        starts=starts,
        samples=20_000,
        report=stages.append,
    )
    assert found.kl.value == pytest.approx(4 * 0.1**2 / (2 * 0.05**2), rel=0.05)
    assert 0 < found.floor.value < 0.01
    assert found.excess.value == pytest.approx(found.kl.value - found.floor.value)
    assert (found.name, found.second, found.starts) == ("diagnostic", SECOND, starts)
    assert (found.components, found.covariance, found.codebooks) == (1, "diag", 4000)
    assert (found.dimensions, found.samples, found.converged) == (4, 20_000, True)
    assert found.held_out == pytest.approx(found.log_likelihood, abs=0.1)
    assert stages == ["fit clean", "fit again", "fit moved", "monte carlo"]


def test_the_floor_is_the_figure_of_an_image_that_did_not_move() -> None:
    again = books(0, 2)
    (found,) = diagnose(clean=books(0, 1), again=again, moved=[again.clone()], second=[None], samples=1000)
    assert found.kl == found.floor
    assert (found.excess.value, found.excess.standard_error) == (0.0, 0.0)
    assert found.second is None


def test_fits_of_their_own_starts_differ_by_more() -> None:
    sets = {"clean": books(0, 1, 500), "again": books(0, 2, 500), "moved": [books(0, 3, 500)]}
    shared, own = (
        diagnose(**sets, second=[None], starts=starts, samples=5000, mixture=MixtureSettings(components=6))[0]
        for starts in ("shared", "own")
    )
    assert shared.floor.value < own.floor.value


def test_a_diagnosis_can_be_repeated_and_changes_nothing() -> None:
    sets = {"clean": books(0, 1, 300), "again": books(0, 2, 300), "moved": [books(0.1, 3, 300)]}
    state = torch.random.get_rng_state()
    one, two, other = (diagnose(**sets, second=[SECOND], samples=500, seed=seed)[0] for seed in (4, 4, 5))
    assert one == two
    assert one != other
    assert torch.equal(torch.random.get_rng_state(), state)
    with pytest.raises(dataclasses.FrozenInstanceError):
        one.kl = one.floor  # type: ignore[misc]


@pytest.mark.parametrize("starts", ["shared", "own"])
def test_several_at_once_are_found_as_each_alone(starts: str) -> None:
    sets = {"clean": books(0, 1, 300), "again": books(0, 2, 300)}
    options = {"samples": 500, "starts": starts, "mixture": MixtureSettings(components=3)}
    moved, second = [books(0.1, 3, 300), books(0.2, 4, 300), books(0, 5, 300)], [SECOND, None, None]
    together = diagnose(**sets, **options, moved=moved, second=second)
    alone = [
        diagnose(**sets, **options, moved=[each], second=[labels])[0]
        for each, labels in zip(moved, second, strict=True)
    ]
    assert together == alone
    assert len({each.kl for each in together}) == 3


def test_the_docstring_warns() -> None:
    assert "bounds nothing" in Diagnostic.__doc__
    assert "always show it with" in Diagnostic.__doc__


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"moved": []}, "0 moved and 1 second should be equally many"),
        ({"second": [None, None]}, "1 moved and 2 second"),
        ({"moved": [torch.zeros(9, 2, 2)]}, r"\(300, 2, 2\), \(300, 2, 2\), \(9, 2, 2\)"),
        ({"starts": "mine"}, "starts='mine'"),
        ({"samples": 1}, "samples=1"),
        ({"seed": 2**64 - 1}, "seed="),
        ({"mixture": MixtureSettings(components=301)}, "300 values.*components=301"),
    ],
)
def test_a_diagnosis_of_nonsense_is_refused(changes: dict, message: str) -> None:
    sets = {"clean": books(0, 1, 300), "again": books(0, 2, 300), "moved": [books(0.1, 3, 300)]}
    with pytest.raises(InvalidInputError, match=message):
        diagnose(**{**sets, "second": [None], "samples": 100, **changes})
