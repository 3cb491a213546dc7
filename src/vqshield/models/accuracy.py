"""Accuracy: a share of images with its spread, the one result type for accuracies."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Accuracy:
    """The accuracy of several runs on the same images, as a fraction.

    Attributes:
        mean, std: over runs; standard_error: of the mean, over images.
        runs: how many runs, each with random numbers of its own; n: how many images.
    """

    mean: float
    std: float
    standard_error: float
    runs: int
    n: int
