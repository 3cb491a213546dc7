"""From one bound per image to a statement about the whole test set.

Of ten thousand bounds at delta = 0.005, fifty may fail. A mean of bounds does not bound the mean until that
is accounted for, in one of two ways.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from vqshield.certificates.intervals import survival
from vqshield.certificates.numbers import chance, doubles
from vqshield.core import checks
from vqshield.core.errors import InvalidInputError


@dataclass(frozen=True)
class Statement:
    """With probability `confidence` or more, `holding` or more of the bounds on `images` images hold, so that
    the mean error is at most `mean_error`.

    Example:
        >>> print(vq.certificates.Statement(images=100, holding=98, confidence=0.99, mean_error=0.2))
        with probability ≥ 0.99, at least 98 of 100 bounds hold and the mean accuracy is ≥ 0.8000
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
    """delta/N: N bounds at this delta hold together with probability 1 − delta.

    Example:
        >>> vq.certificates.per_image_delta(delta=0.05, images=1000)
        5e-05
    """
    return chance("delta", delta) / checks.whole("images", images, least=1)


def union_statement(*, upper: Tensor, delta: float) -> Statement:
    """All bounds hold together with probability 1 − delta (Bonferroni); the draws may depend on each other.

    The bounds `upper` (N,) must each be at `per_image_delta(delta=delta, images=N)`.

    Example:
        >>> said = vq.certificates.union_statement(upper=torch.tensor([0.1, 0.3]), delta=0.05)
        >>> said.holding, round(said.certified_accuracy, 4)
        (2, 0.8)
    """
    values = _per_image(upper)
    return Statement(len(values), len(values), 1 - chance("delta", delta), float(values.mean()))


def binomial_statement(*, upper: Tensor, delta: float, eta: float) -> Statement:
    """All but q bounds hold with probability 1 − eta, where q is the 1 − eta quantile of Bin(N, delta).

    The bounds `upper` (N,) must each be at delta, from independent draws of the images. Which q bounds fail
    is unknown, so the q smallest are replaced by 1.

    Example:
        >>> upper = torch.full((100,), 0.2)
        >>> said = vq.certificates.binomial_statement(upper=upper, delta=0.005, eta=0.01)
        >>> said.holding, round(said.certified_accuracy, 3)
        (97, 0.776)
    """
    values = _per_image(upper)
    failing = allowed_failures(images=len(values), delta=delta, eta=eta)
    kept = values.sort().values[failing:]
    mean = float((kept.sum() + failing) / len(values))
    return Statement(len(values), len(values) - failing, 1 - chance("eta", eta), mean)


def allowed_failures(*, images: int, delta: float, eta: float) -> int:
    """The least q with P(Bin(N, delta) > q) ≤ eta: no more of N bounds fail, with probability 1 − eta.

    Example:
        >>> vq.certificates.allowed_failures(images=10_000, delta=0.005, eta=0.01)
        67
    """
    checks.whole("images", images, least=1)
    candidates = torch.arange(images, dtype=torch.float64)
    p = torch.full_like(candidates, chance("delta", delta))
    return int((survival(candidates, images, p) > chance("eta", eta)).sum())


def _per_image(upper: Tensor) -> Tensor:
    values = doubles("upper", upper, least=0, most=1)
    if values.dim() != 1 or len(values) == 0:
        raise InvalidInputError(f"upper of shape {tuple(values.shape)} should be (N,): a bound per image")
    return values
