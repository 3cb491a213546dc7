"""Accuracy: a share of images with its spread, the one result type for accuracies."""

from dataclasses import dataclass, field
from typing import Any, Self

from vqshield.models.draws import Draws


@dataclass(frozen=True, kw_only=True)
class Accuracy:
    """The accuracy of several runs on the same images, as a fraction.

    Rows of results are subclasses: they add what the accuracy is of.

    Attributes:
        mean, std: over runs; std None: not reported. standard_error: of the mean, over images.
        runs: how many runs, each with random numbers of its own; n: how many images.
    """

    mean: float
    std: float | None = field(default=None, metadata={"omit": True})
    standard_error: float
    runs: int
    n: int

    @classmethod
    def of(cls, draws: Draws, **others: Any) -> Self:
        """The accuracy of a model's predictions; others: the fields of a subclass."""
        return cls(
            mean=draws.mean,
            std=draws.std,
            standard_error=draws.standard_error,
            runs=len(draws.predictions),
            n=len(draws.labels),
            **others,
        )
