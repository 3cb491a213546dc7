"""From one bound per image to a statement about the whole test set.

A bound that holds with probability 1 − delta fails now and then: of ten thousand bounds at delta = 0.005,
fifty may. A mean of bounds is no bound on the mean until that is accounted for, in one of two ways.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from vqshield import checks
from vqshield.certificates import binomial
from vqshield.certificates.numbers import chance, doubles
from vqshield.errors import InvalidInputError


@dataclass(frozen=True)
class Statement:
    """With probability at least `confidence` over the draws, at least `holding` of the bounds on `images`
    images hold, and so their mean error is at most `mean_error`.
    """

    images: int  # N
    holding: int
    confidence: float
    mean_error: float

    @property
    def certified_accuracy(self) -> float:
        """The mean accuracy of a draw over these images is at least this."""
        return 1 - self.mean_error

    def __str__(self) -> str:
        return (
            f"with probability ≥ {self.confidence:g}, at least {self.holding} of {self.images} bounds hold "
            f"and the mean accuracy is ≥ {self.certified_accuracy:.4f}"
        )


def per_image_delta(*, delta: float, images: int) -> float:
    """delta/N: what each of N bounds may fail with, so that all hold together with probability 1 − delta."""
    return chance("delta", delta) / checks.whole("images", images, least=1)


def union_statement(*, upper: Tensor, delta: float) -> Statement:
    """All bounds hold together with probability 1 − delta (Bonferroni); the draws may depend on each other.

    upper holds the error bounds (N,), each taken at `per_image_delta(delta=delta, images=N)`.
    """
    values = _per_image(upper)
    confidence = 1 - chance("delta", delta)
    return Statement(len(values), len(values), confidence, float(values.mean()))


def binomial_statement(*, upper: Tensor, delta: float, eta: float) -> Statement:
    """All but q bounds hold with probability 1 − eta, where q is the 1 − eta quantile of Bin(N, delta).

    upper holds the error bounds (N,), each taken at delta; the draws of different images must be independent.
    Which q bounds fail is unknown, so the q smallest are replaced by 1.
    """
    values = _per_image(upper)
    failing = allowed_failures(images=len(values), delta=delta, eta=eta)
    kept = values.sort().values[failing:]
    mean = float((kept.sum() + failing) / len(values))
    return Statement(len(values), len(values) - failing, 1 - chance("eta", eta), mean)


def allowed_failures(*, images: int, delta: float, eta: float) -> int:
    """The least q with P(Bin(N, delta) > q) ≤ eta: no more of N bounds fail, with probability 1 − eta."""
    checks.whole("images", images, least=1)
    candidates = torch.arange(images, dtype=torch.float64)
    p = torch.full_like(candidates, chance("delta", delta))
    return int((binomial.survival(candidates, images, p) > chance("eta", eta)).sum())


def _per_image(upper: Tensor) -> Tensor:
    values = doubles("upper", upper, least=0, most=1)
    if values.dim() != 1 or len(values) == 0:
        raise InvalidInputError(f"upper of shape {tuple(values.shape)} should be (N,): a bound per image")
    return values
