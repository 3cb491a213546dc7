"""Covariances of a mixture's components: how each kind is estimated, and what a density and a sample need.

A spherical covariance is a diagonal one with equal values. A tied one has a class of its own: the values are
whitened once for all components, not once for each.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from vqshield.core import checks
from vqshield.core.errors import InvalidInputError


class Covariances(ABC):
    """The covariances of K Gaussians in D dimensions."""

    @abstractmethod
    def distances(self, values: Tensor, means: Tensor) -> Tensor:
        """Squared Mahalanobis distances of values (n, D) from the components' means (K, D): (n, K)."""

    @abstractmethod
    def colour(self, noise: Tensor, component: int) -> Tensor:
        """Standard normal values (n, D), turned into differences from that component's mean."""

    @abstractmethod
    def half_log_determinants(self) -> Tensor:
        """½ ln det of each covariance, (K,), or (1,) where there is one for all."""


@dataclass(frozen=True, eq=False)
class Diagonal(Covariances):
    """Independent coordinates."""

    deviations: Tensor  # (K, D)

    def distances(self, values: Tensor, means: Tensor) -> Tensor:
        pairs = zip(means, self.deviations, strict=True)
        return torch.stack([((values - mean) / spread).square_().sum(1) for mean, spread in pairs], 1)

    def colour(self, noise: Tensor, component: int) -> Tensor:
        return noise * self.deviations[component]

    def half_log_determinants(self) -> Tensor:
        return self.deviations.log().sum(-1)


@dataclass(frozen=True, eq=False)
class Dense(Covariances):
    """Any covariances L·Lᵀ. The inverses are kept too: a matrix product is far faster than a triangular
    solve for ten thousand right-hand sides.
    """

    factors: Tensor  # L, lower triangular, (K, D, D)
    inverses: Tensor  # L⁻ᵀ, (K, D, D)

    def distances(self, values: Tensor, means: Tensor) -> Tensor:
        pairs = zip(means, self.inverses, strict=True)
        return torch.stack([((values - mean) @ inverse).square_().sum(1) for mean, inverse in pairs], 1)

    def colour(self, noise: Tensor, component: int) -> Tensor:
        return noise @ self.factors[component].T

    def half_log_determinants(self) -> Tensor:
        return self.factors.diagonal(dim1=-2, dim2=-1).log().sum(-1)


@dataclass(frozen=True, eq=False)
class Shared(Covariances):
    """One covariance L·Lᵀ for all components."""

    factor: Tensor  # (D, D)
    inverse: Tensor  # (D, D)

    def distances(self, values: Tensor, means: Tensor) -> Tensor:
        middle = means.mean(0)  # around it the squares are small, and few digits are lost
        white, centres = (values - middle) @ self.inverse, (means - middle) @ self.inverse
        squares = white.square().sum(1, keepdim=True) + centres.square().sum(1)
        return squares.addmm_(white, centres.T, alpha=-2).clamp_(min=0)

    def colour(self, noise: Tensor, component: int) -> Tensor:
        return noise @ self.factor.T

    def half_log_determinants(self) -> Tensor:
        return self.factor.diagonal().log().sum()[None]


def kinds() -> list[str]:
    """The kinds of covariance, by the names that scikit-learn uses."""
    return list(_ESTIMATORS)


def estimate(
    kind: str, values: Tensor, responsibilities: Tensor, means: Tensor, *, reg_covar: float
) -> Covariances:
    """The weighted covariances around the weighted means, with reg_covar added to every variance.

    values (n, D), responsibilities (n, K) that add up to 1, means (K, D).
    """
    return _ESTIMATORS[checks.one_of("covariance", kind, _ESTIMATORS)](
        values, responsibilities, means, reg_covar
    )


def occupancy(responsibilities: Tensor) -> Tensor:
    """How many values each component answers for, (K,); never zero, so that an empty one divides nothing."""
    return responsibilities.sum(0) + 10 * torch.finfo(responsibilities.dtype).eps


def _full(values: Tensor, responsibilities: Tensor, means: Tensor, reg_covar: float) -> Covariances:
    found = []
    for share, total, mean in zip(responsibilities.T, occupancy(responsibilities), means, strict=True):
        away = values - mean  # component by component: all at once would take K copies of the values
        found.append((away * share[:, None]).T @ away / total)
    return Dense(*_factored(torch.stack(found), reg_covar))


def _tied(values: Tensor, responsibilities: Tensor, means: Tensor, reg_covar: float) -> Covariances:
    totals, middle = occupancy(responsibilities), values.mean(0)
    away, centres = values - middle, means - middle
    within = away.T @ away - (centres * totals[:, None]).T @ centres  # all scatter less that of the means
    return Shared(*_factored(within / totals.sum(), reg_covar))


def _diag(values: Tensor, responsibilities: Tensor, means: Tensor, reg_covar: float) -> Covariances:
    return Diagonal((_variances(values, responsibilities, means) + reg_covar).sqrt())


def _spherical(values: Tensor, responsibilities: Tensor, means: Tensor, reg_covar: float) -> Covariances:
    variances = _variances(values, responsibilities, means).mean(1, keepdim=True) + reg_covar
    return Diagonal(variances.sqrt().expand_as(means))


_ESTIMATORS: dict[str, Callable[[Tensor, Tensor, Tensor, float], Covariances]] = {
    "full": _full,
    "tied": _tied,
    "diag": _diag,
    "spherical": _spherical,
}


def _variances(values: Tensor, responsibilities: Tensor, means: Tensor) -> Tensor:
    pairs = zip(responsibilities.T, means, strict=True)
    squares = torch.stack([share @ (values - mean).square_() for share, mean in pairs])
    return squares / occupancy(responsibilities)[:, None]


def _factored(matrices: Tensor, reg_covar: float) -> tuple[Tensor, Tensor]:
    """L and L⁻ᵀ of (…, D, D)."""
    size = matrices.shape[-1]
    matrices.diagonal(dim1=-2, dim2=-1).add_(reg_covar)
    factors, failed = torch.linalg.cholesky_ex(matrices)
    if bool(failed.any()):
        raise InvalidInputError(
            f"reg_covar={reg_covar:g} should be larger: a covariance in {size} dimensions came out singular"
        )
    unit = torch.eye(size, dtype=factors.dtype, device=factors.device).expand_as(factors)
    return factors, torch.linalg.solve_triangular(factors, unit, upper=False).mT.contiguous()
