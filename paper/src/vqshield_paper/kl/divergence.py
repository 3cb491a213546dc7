"""The KL diagnostic: how far apart the codebooks of x and of x' lie, as far as fitted mixtures can tell.

The paper calls U_KL an upper bound on KL(Q(x) ‖ Q(x')). So it is, of the true distributions; but its first
term is computed from mixtures fitted to samples, and a fitted mixture bounds nothing. Hence "diagnostic".
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from vqshield.core import checks
from vqshield.core.errors import InvalidInputError
from vqshield_paper.kl.fitting import MixtureFit, MixtureSettings, fit_mixture, improve, prepared
from vqshield_paper.kl.labels import LabelDivergence
from vqshield_paper.kl.mixtures import Mixture

STARTS = ("shared", "own")
_VALUES_A_CHUNK = 2**23  # 64 MiB of float64: a few copies of it exist at a time


@dataclass(frozen=True)
class Estimate:
    """A mean over Monte-Carlo samples and its standard error."""

    value: float
    standard_error: float


@dataclass(frozen=True, kw_only=True)
class Diagnostic:
    """How far the codebooks of x' are from those of x, by fitted mixtures, in nats. It bounds nothing.

    A mixture fitted to samples is neither their distribution nor above or below it in any sense, so kl may
    lie on either side of the true divergence. The floor is what the same procedure finds between two sets of
    codebooks of the very same image, where the truth is 0: always show it with kl. A kl that is not clearly
    above its floor says nothing. Standard errors are those of the Monte-Carlo sums alone: other codebooks
    or another start of the fits change the values by more.

    second: the other term of U_KL, not to be left out; None says that it was not computed, not that it is 0.
    log_likelihood, held_out: mean ln density of the mixture of x at the codebooks it was fitted to, and at
    the second set: the further apart, the more the fit has overfitted.
    converged: whether the fits of all three sets did.
    """

    name: str = "diagnostic"
    kl: Estimate
    floor: Estimate
    excess: Estimate  # kl − floor, from the same samples, so that what both share falls out
    second: LabelDivergence | None
    log_likelihood: float
    held_out: float
    converged: bool
    codebooks: int  # in each of the three sets
    dimensions: int
    samples: int
    components: int
    covariance: str
    starts: str


def sorted_codebooks(codebooks: Tensor) -> Tensor:
    """T of the paper: centres sorted by L2 norm and concatenated, (m, k, d) → (m, k·d).

    A codebook is a set: the order of its centres means nothing.
    """
    if codebooks.dim() != 3 or not codebooks.is_floating_point():
        found = f"shape {tuple(codebooks.shape)} and dtype {codebooks.dtype}"
        raise InvalidInputError(f"codebooks of {found} should be floating-point, (m, k, d)")
    order = codebooks.double().norm(dim=2).argsort(dim=1, stable=True)
    return codebooks.gather(1, order[:, :, None].expand_as(codebooks)).flatten(1)


def mixture_kl(p: Mixture, q: Mixture, *, samples: int = 100_000, seed: int = 0) -> Estimate:
    """KL(p ‖ q) = E_p[ln p − ln q] by Monte Carlo; exactly 0 of a mixture with itself."""
    return _estimate(_log_ratios(p, [q], samples=samples, seed=seed)[0])


def diagnose(
    *,
    clean: Tensor,
    again: Tensor,
    moved: Sequence[Tensor],
    second: Sequence[LabelDivergence | None],
    mixture: MixtureSettings | None = None,
    starts: str = "shared",
    samples: int = 100_000,
    seed: int = 0,
    report: Callable[[str], None] = lambda _: None,
) -> list[Diagnostic]:
    """Fit mixtures to codebooks of x, of x once more and of every x', and compare them.

    Several x' of the same x share the fits and samples of x, which are most of the work; the values of each
    are those that it would have alone.

    Args:
        clean: codebooks of x, (m, k, d).
        again: a second, independent set of them.
        moved: such a set for every x'.
        second: for every x' what `label_divergence` found, or None.
        mixture: how mixtures are fitted.
        starts: "shared" begins the fits of again and moved from the mixture of clean; "own" begins each from
            k-means of its own codebooks. Expectation maximisation ends in one of many optima, and two fits
            from starts of their own differ by that choice alone, which raises kl and floor alike and hides
            what is sought.
        samples: of the Monte-Carlo sums.
        seed: decides the starts of the fits and the samples.
        report: called with each stage as it starts.
    """
    if len(moved) != len(second) or not moved:
        raise InvalidInputError(
            f"{len(moved)} moved and {len(second)} second should be equally many, at least one"
        )
    if any(each.shape != clean.shape for each in (again, *moved)):
        shapes = ", ".join(str(tuple(each.shape)) for each in (clean, again, *moved))
        raise InvalidInputError(
            f"clean, again and moved of shapes {shapes} should be equal: m codebooks each"
        )
    chosen = MixtureSettings() if mixture is None else mixture
    checks.whole("seed", seed, least=0, below=2**64 - 3)
    checks.one_of("starts", starts, STARTS)
    report("fit clean")
    first = fit_mixture(_values(clean, chosen), settings=chosen, seed=seed)

    def fit(values: Tensor, number: int) -> MixtureFit:
        if starts == "shared":
            return improve(values, first.mixture, chosen)
        return fit_mixture(values, settings=chosen, seed=seed + number)

    report("fit again")
    fresh = _values(again, chosen)
    same = fit(fresh, 1)
    report("fit moved")
    others = [fit(_values(each, chosen), 2) for each in moved]
    report("monte carlo")
    mixtures = [each.mixture for each in (same, *others)]
    floor, *kls = _log_ratios(first.mixture, mixtures, samples=samples, seed=seed + 3)
    held_out = float(first.mixture.log_prob(fresh).mean())
    return [
        Diagnostic(
            kl=_estimate(kl),
            floor=_estimate(floor),
            excess=_estimate(kl - floor),
            second=labels,
            log_likelihood=first.log_likelihood,
            held_out=held_out,
            converged=first.converged and same.converged and other.converged,
            codebooks=len(clean),
            dimensions=first.mixture.dimensions,
            samples=samples,
            components=chosen.components,
            covariance=chosen.covariance,
            starts=starts,
        )
        for kl, labels, other in zip(kls, second, others, strict=True)
    ]


def _values(codebooks: Tensor, settings: MixtureSettings) -> Tensor:
    return prepared(sorted_codebooks(codebooks), settings)


def _log_ratios(p: Mixture, others: Sequence[Mixture], *, samples: int, seed: int) -> Tensor:
    """ln p − ln q of samples from p, for every q: (len(others), samples), float64."""
    checks.whole("samples", samples, least=2)
    for q in others:
        if q.means.shape[1] != p.dimensions or q.means.dtype != p.means.dtype:
            found = f"{q.means.shape[1]} dimensions and {q.means.dtype}"
            raise InvalidInputError(f"q of {found} should be like p: {p.dimensions} and {p.means.dtype}")
    chunk = max(1, _VALUES_A_CHUNK // p.dimensions)
    ratios = []
    for first in range(0, samples, chunk):
        values = p.sample(count=min(chunk, samples - first), seed=seed, first=first)
        own = p.log_prob(values).double()
        ratios.append(torch.stack([own - q.log_prob(values).double() for q in others]))
    return torch.cat(ratios, 1)


def _estimate(values: Tensor) -> Estimate:
    return Estimate(float(values.mean()), float(values.std()) / math.sqrt(len(values)))
