"""Gaussian mixtures in torch: density and samples. fitting.py finds one for given values."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from vqshield.core import checks
from vqshield.core.errors import InvalidInputError
from vqshield.quantization.noise import Draw, Stage
from vqshield_paper.kl.covariances import Covariances, estimate, occupancy


@dataclass(frozen=True, eq=False)
class Mixture:
    """K Gaussians in D dimensions with their weights."""

    weights: Tensor  # (K,)
    means: Tensor  # (K, D)
    covariances: Covariances

    @property
    def dimensions(self) -> int:
        return self.means.shape[1]

    def log_joint(self, values: Tensor) -> Tensor:
        """ln of weight times density of every component at values (n, D): (n, K)."""
        self._check(values)
        constant = self.weights.log() - self.covariances.half_log_determinants()
        constant = constant - self.dimensions * math.log(2 * math.pi) / 2
        return self.covariances.distances(values, self.means).mul_(-0.5).add_(constant)

    def log_prob(self, values: Tensor) -> Tensor:
        """ln of the density at values (n, D): (n,)."""
        return torch.logsumexp(self.log_joint(values), 1)

    def sample(self, *, count: int, seed: int, first: int = 0) -> Tensor:
        """Samples number first … first+count−1 of a seed, (count, D): each the same however they are cut."""
        checks.whole("count", count, least=1)
        checks.whole("first", first, least=0)
        checks.whole("seed", seed, least=0, below=2**64)
        place = self.means.device
        draw = Draw(seed, torch.arange(first, first + count, device=place))
        edges = self.weights.double().cumsum(0)
        choice = draw.uniforms(Stage.INIT, 0, 1) * edges[-1]
        component = torch.searchsorted(edges, choice[:, 0], right=True).clamp(max=len(edges) - 1)
        noise = draw.normals(Stage.CODEBOOK, 0, self.dimensions).to(self.means.dtype)
        result = torch.empty_like(noise)
        for number, mean in enumerate(self.means):
            rows = (component == number).nonzero()[:, 0]
            result[rows] = mean + self.covariances.colour(noise[rows], number)
        return result

    def _check(self, values: Tensor) -> None:
        if values.dim() != 2 or values.shape[1] != self.dimensions or values.dtype != self.means.dtype:
            found = f"shape {tuple(values.shape)} and dtype {values.dtype}"
            raise InvalidInputError(
                f"values of {found} should be (n, {self.dimensions}) and {self.means.dtype}"
            )


def mixture_of(values: Tensor, responsibilities: Tensor, *, covariance: str, reg_covar: float) -> Mixture:
    """The mixture that describes values (n, D) best, given how much each belongs to each component (n, K)."""
    totals = occupancy(responsibilities)
    means = responsibilities.T @ values / totals[:, None]
    covariances = estimate(covariance, values, responsibilities, means, reg_covar=reg_covar)
    return Mixture(totals / totals.sum(), means, covariances)
