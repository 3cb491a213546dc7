"""Expectation maximisation: a Gaussian mixture for given values, by the rules of scikit-learn's."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from vqshield.core import checks
from vqshield.core.errors import InvalidInputError
from vqshield.quantization.kernels.lloyd import nearest
from vqshield.quantization.noise import Draw, Stage
from vqshield_paper.kl.covariances import kinds
from vqshield_paper.kl.mixtures import Mixture, mixture_of

_LLOYD_ROUNDS = 10  # a start only: expectation maximisation continues from it
_DTYPES = {"float32": torch.float32, "float64": torch.float64}


@dataclass(frozen=True, kw_only=True)
class MixtureSettings:
    """What decides a fit, besides the values and the seed.

    Args:
        components: K of the paper.
        covariance: "full", "tied", "diag" or "spherical".
        reg_covar: added to every variance, so that no component collapses onto a point.
        tolerance: a fit is done when the mean log-likelihood changes by less.
        iterations: the most that a fit may take.
        restarts: fits from different starts; the likeliest counts.
        dtype: "float64" or "float32", which some GPUs do much faster.
    """

    components: int = 8
    covariance: str = "tied"
    reg_covar: float = 1e-6
    tolerance: float = 1e-3
    iterations: int = 100
    restarts: int = 1
    dtype: str = "float64"

    def __post_init__(self) -> None:
        for name in ("components", "iterations", "restarts"):
            checks.whole(name, getattr(self, name), least=1)
        checks.one_of("covariance", self.covariance, kinds())
        checks.one_of("dtype", self.dtype, _DTYPES)
        checks.real("reg_covar", self.reg_covar)
        checks.real("tolerance", self.tolerance)


@dataclass(frozen=True, eq=False)
class MixtureFit:
    """A mixture and how it was found; log_likelihood is the mean of ln of its density at the values."""

    mixture: Mixture
    log_likelihood: float
    iterations: int
    converged: bool


def fit_mixture(values: Tensor, *, settings: MixtureSettings | None = None, seed: int = 0) -> MixtureFit:
    """The likeliest mixture of all restarts. Only their starts are random; the seed decides them."""
    chosen = MixtureSettings() if settings is None else settings
    checks.whole("seed", seed, least=0, below=2**64)
    given = prepared(values, chosen)
    fits = [
        improve(given, _start(given, chosen, seed, restart), chosen) for restart in range(chosen.restarts)
    ]
    return max(fits, key=lambda found: found.log_likelihood)


def prepared(values: Tensor, settings: MixtureSettings) -> Tensor:
    """Values (n, D), checked, in the dtype of the fit."""
    if values.dim() != 2 or not values.is_floating_point() or values.shape[1] < 1:
        found = f"shape {tuple(values.shape)} and dtype {values.dtype}"
        raise InvalidInputError(f"values of {found} should be floating-point, (n, D)")
    if len(values) < settings.components:
        raise InvalidInputError(
            f"{len(values)} values should be at least as many as components={settings.components}"
        )
    checks.finite("values", values)
    return values.detach().to(_DTYPES[settings.dtype])


def improve(values: Tensor, mixture: Mixture, settings: MixtureSettings) -> MixtureFit:
    """Expectation maximisation from a given mixture, until an iteration gains little."""
    before, converged, number = -math.inf, False, 0
    while number < settings.iterations and not converged:
        number += 1
        joint = mixture.log_joint(values)
        each = torch.logsumexp(joint, 1)
        shares = (joint - each[:, None]).exp_()
        mixture = _mixture(values, shares, settings)
        now = float(each.mean())
        converged, before = abs(now - before) < settings.tolerance, now
    return MixtureFit(mixture, float(mixture.log_prob(values).mean()), number, converged)


def _mixture(values: Tensor, responsibilities: Tensor, settings: MixtureSettings) -> Mixture:
    return mixture_of(values, responsibilities, covariance=settings.covariance, reg_covar=settings.reg_covar)


def _start(values: Tensor, settings: MixtureSettings, seed: int, restart: int) -> Mixture:
    """Every value belongs to the nearest of K centres: k-means++ and some rounds of k-means."""
    centres = _plus_plus(values, settings.components, seed, restart)
    for _ in range(_LLOYD_ROUNDS):
        # A matrix product instead of index_add, whose order of summing on a GPU is left to chance.
        belongs = one_hot(_nearest(values, centres), len(centres)).to(values.dtype)
        counts = belongs.sum(0)[:, None]
        centres = torch.where(counts > 0, belongs.T @ values / counts.clamp(min=1), centres)
    return _mixture(values, one_hot(_nearest(values, centres), len(centres)).to(values.dtype), settings)


def _plus_plus(values: Tensor, count: int, seed: int, restart: int) -> Tensor:
    """k-means++: each next centre is a value drawn by its squared distance from the nearest so far."""
    uniforms = Draw(seed, torch.tensor([restart])).uniforms(Stage.INIT, 0, count)[0].tolist()
    chosen = [int(uniforms[0] * len(values))]
    distances = torch.full((len(values),), math.inf, dtype=torch.float64)
    for uniform in uniforms[1:]:
        fresh = (values - values[chosen[-1]]).square_().sum(1)
        distances = torch.minimum(distances, fresh.double().cpu())
        running = distances.cumsum(0)  # on the CPU, where the order of summing is fixed
        if running[-1] > 0:
            target = (running[-1] * uniform).reshape(1)
            chosen.append(min(int(torch.searchsorted(running, target, right=True)), len(values) - 1))
        else:
            chosen.append(int(uniform * len(values)))
    return values[torch.tensor(chosen, device=values.device)]


def _nearest(values: Tensor, centres: Tensor) -> Tensor:
    return nearest(values[None], centres[None])[0]
