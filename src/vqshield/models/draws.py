"""Repeated evaluation of a random model: its predictions for each image in each of several runs."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import torch
from torch import Tensor

from vqshield.core import checks
from vqshield.core.errors import InvalidInputError
from vqshield.models.calling import Model, ask, check_finite, check_rows, evaluating


@dataclass(frozen=True)
class Draws:
    """What a model predicted for each image in each of several runs."""

    predictions: Tensor  # classes, (runs, N)
    labels: Tensor  # the true ones, (N,)

    @property
    def right(self) -> Tensor:
        """How many runs classify each image correctly, (N,)."""
        return (self.predictions == self.labels).sum(0)

    @property
    def accuracies(self) -> Tensor:
        """The accuracy of each run, (runs,)."""
        return (self.predictions == self.labels).double().mean(1)

    @property
    def mean(self) -> float:
        """Accuracy averaged over the runs."""
        return float(self.accuracies.mean())

    @property
    def std(self) -> float:
        """Standard deviation between runs (of the sample; 0 for a single run)."""
        return float(self.accuracies.std()) if len(self.predictions) > 1 else 0.0

    @property
    def standard_error(self) -> float:
        """Of the mean accuracy, from the spread between images, not between runs."""
        shares = self.right.double() / len(self.predictions)
        return float(shares.std() / math.sqrt(len(shares))) if len(shares) > 1 else 0.0

    def vote(self) -> float:
        """Accuracy of the majority vote of all runs; ties: the lowest class."""
        votes = torch.nn.functional.one_hot(self.predictions).sum(0)  # (N, classes)
        earlier = torch.arange(votes.shape[1], 0, -1)
        elected = (votes * (votes.shape[1] + 1) + earlier).argmax(1)
        return float((elected == self.labels).double().mean())

    def worst(self) -> float:
        """Share of images that are right in every run."""
        return float((self.predictions == self.labels).all(0).double().mean())


@dataclass(frozen=True, kw_only=True)
class Accuracy:
    """The accuracy of several runs on the same images, as a fraction. Rows of results are subclasses.

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


def draw_predictions(
    model: Model, images: Tensor, labels: Tensor, *, runs: int = 10, batch: int = 500
) -> Draws:
    """The predictions of fresh draws of the model for every image.

    Args:
        model: images → logits (B, classes).
        images: (N, q, h, w) in [0, 1].
        labels: the true classes, (N,), int64.
        runs: draws of each image.
        batch: draws made at once.

    A module in training mode is in eval mode meanwhile.

    Example:
        >>> from vqshield.models.draws import draw_predictions
        >>> draws = draw_predictions(vq.defend(classifier, seed=0), images, labels, runs=3)
        >>> draws.predictions.shape, 0 <= draws.mean <= 1
        (torch.Size([3, 8]), True)
    """
    checks.image_batch(images)
    checks.pixel_values(images)
    labels = checks.per_image("labels", labels, images)
    logits = outputs(model, images, runs=runs, batch=batch)
    check_rows(logits, len(images))
    return Draws(logits.argmax(-1).cpu(), labels.cpu())


@torch.no_grad()
def outputs(model: Model, images: Tensor, *, runs: int = 10, batch: int = 500) -> Tensor:
    """The model's outputs in fresh draws for every image, (runs, N, …); arguments as of `draw_predictions`.

    A batch may hold many draws of one image, so that they fill the device.
    """
    checks.whole("runs", runs, least=1)
    checks.whole("batch", batch, least=1)
    numbers = torch.arange(runs * len(images), device=images.device)
    with evaluating(model):
        parts = [_rows(model, images[some % len(images)]) for some in torch.split(numbers, batch)]
    values = torch.cat(parts).view(runs, len(images), *parts[0].shape[1:])
    check_finite(values.flatten(2) if values.dim() > 2 else values[..., None])
    return values


def _rows(model: Model, images: Tensor) -> Tensor:
    rows = ask(model, images)
    if rows.dim() == 0 or len(rows) != len(images):
        raise InvalidInputError(
            f"the model gives values of shape {tuple(rows.shape)} for {len(images)} images; "
            "the first dimension should be the images"
        )
    return rows


def strongest(selection: Sequence[Draws], report: Sequence[Draws]) -> tuple[Draws, Tensor]:
    """For each image the strongest attack, chosen by the selection draws, and its draws in the report.

    Choosing and reporting by the same draws would count luck as strength. Of attacks that are equally strong
    on an image, the one that is strongest on all images is chosen. Also returns the choices, (N,).
    """
    if len(selection) != len(report) or not report:
        raise InvalidInputError(
            f"{len(selection)} selections and {len(report)} reports should be equally many, at least one"
        )
    right = torch.stack([draws.right for draws in selection])  # (attacks, N)
    ranks = right.sum(1).argsort(stable=True).argsort()
    choice = (right * len(selection) + ranks[:, None]).argmin(0)
    predictions = torch.stack([draws.predictions for draws in report])  # (attacks, runs, N)
    index = choice.expand(1, *predictions.shape[1:])
    return Draws(predictions.gather(0, index)[0], report[0].labels), choice


def accuracy_after_tries(right: Tensor, runs: int, tries: Sequence[int]) -> tuple[float, ...]:
    """Accuracy against an attacker who may submit the same image several times and needs one wrong answer.

    For each number of tries, from 1 to runs, the share of images that are right in all tries, averaged over
    every choice of that many runs: an estimate of pⁿ without bias. The argument right is `Draws.right`.

    Example:
        >>> from vqshield.models.draws import accuracy_after_tries
        >>> accuracy_after_tries(torch.tensor([4, 2]), 4, (1, 2, 4))
        (0.75, 0.5833333333333334, 0.5)
    """
    checks.whole("runs", runs, least=1)
    counts = right.tolist()
    if not counts or min(counts) < 0 or max(counts) > runs:
        raise InvalidInputError(f"right={counts[:5]} … should be at least one count, each from 0 to {runs}")
    for number in tries:
        checks.whole("tries", number, least=1, below=runs + 1)
    return tuple(
        sum(math.comb(count, number) for count in counts) / math.comb(runs, number) / len(counts)
        for number in tries
    )
