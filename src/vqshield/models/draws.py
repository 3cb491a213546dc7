"""Repeated evaluation of a random model: what it answers for each image in each of several runs."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from vqshield.core import checks
from vqshield.core.errors import InvalidInputError
from vqshield.models.calling import Model, ask, check_finite, check_rows, evaluating


@dataclass(frozen=True)
class Draws:
    """What a model answered for each image in each of several runs.

    Args:
        predictions: predicted classes, (runs, N).
        labels: the true ones, (N,).

    Example:
        >>> from vqshield.models.draws import Draws
        >>> draws = Draws(torch.tensor([[0, 1], [0, 1], [1, 1]]), torch.tensor([0, 0]))
        >>> round(draws.mean, 4), draws.vote(), draws.worst()
        (0.3333, 0.5, 0.0)
    """

    predictions: Tensor
    labels: Tensor

    @property
    def right(self) -> Tensor:
        """How many runs got each image right, (N,)."""
        return (self.predictions == self.labels).sum(0)

    @property
    def accuracies(self) -> Tensor:
        """Share of right answers in each run, (runs,)."""
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
        """Of the mean accuracy, as an estimate for images like these: the spread between images, not runs."""
        shares = self.right.double() / len(self.predictions)
        return float(shares.std() / math.sqrt(len(shares))) if len(shares) > 1 else 0.0

    def vote(self, count: int | None = None) -> float:
        """Accuracy of the most frequent answer of the first `count` runs (all); ties: the lowest class."""
        answers = torch.nn.functional.one_hot(self._first(count)).sum(0)  # (N, classes)
        earlier = torch.arange(answers.shape[1], 0, -1)
        answers = (answers * (answers.shape[1] + 1) + earlier).argmax(1)
        return float((answers == self.labels).double().mean())

    def worst(self, count: int | None = None) -> float:
        """Share of images right in every one of the first `count` runs (all): an attacker may try again."""
        return float((self._first(count) == self.labels).all(0).double().mean())

    def wilson(self, z: float = 1.96) -> tuple[Tensor, Tensor]:
        """Bounds (N,), (N,) of Wilson's interval for each image's probability of a right answer."""
        runs = len(self.predictions)
        share = self.right.double() / runs
        middle = (share + z**2 / (2 * runs)) / (1 + z**2 / runs)
        half = z / (1 + z**2 / runs) * (share * (1 - share) / runs + z**2 / (4 * runs**2)).sqrt()
        return (middle - half).clamp(0, 1), (middle + half).clamp(0, 1)

    def _first(self, count: int | None) -> Tensor:
        if count is None:
            return self.predictions
        checks.whole("count", count, least=1, below=len(self.predictions) + 1)
        return self.predictions[:count]


def draw_predictions(
    model: Model, images: Tensor, labels: Tensor, *, runs: int = 10, batch: int = 500
) -> Draws:
    """The answers of fresh draws of the model for every image.

    Args:
        model: images → logits (B, classes).
        images: (N, q, h, w) in [0, 1].
        labels: the true classes, (N,), int64.
        runs: draws of each image.
        batch: draws made at once.

    A module in training mode is put into eval mode meanwhile.

    Raises:
        InvalidInputError: images or labels that cannot be; answers that are no finite logits.

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
    """What the model gives in fresh draws for every image, (runs, N, …).

    Draws are made `batch` at once, of one image or of many, so that a thousand draws of a single image fill
    the device as well. A module in training mode is put into eval mode meanwhile.

    Raises:
        InvalidInputError: the model gives no tensor, not a row per image, or nan or infinity.
    """
    checks.whole("runs", runs, least=1)
    checks.whole("batch", batch, least=1)
    numbers = torch.arange(runs * len(images), device=images.device)
    with evaluating(model):
        parts = [_asked(model, images[some % len(images)]) for some in torch.split(numbers, batch)]
    found = torch.cat(parts).view(runs, len(images), *parts[0].shape[1:])
    check_finite(found.flatten(2) if found.dim() > 2 else found[..., None])
    return found


def _asked(model: Model, images: Tensor) -> Tensor:
    found = ask(model, images)
    if found.dim() == 0 or len(found) != len(images):
        raise InvalidInputError(
            f"the model gives values of shape {tuple(found.shape)} for {len(images)} images; "
            "the first dimension should be the images"
        )
    return found


def strongest(selection: Sequence[Draws], report: Sequence[Draws]) -> tuple[Draws, Tensor]:
    """For each image the attack that leaves least, chosen by the selection draws, reported by the others.

    Choosing and reporting by the same draws would count luck as strength. Where attacks leave equally much of
    an image, the one that leaves least of all images is taken: the more likely to hold. Also gives the
    choices, (N,).
    """
    if len(selection) != len(report) or not report:
        raise InvalidInputError(
            f"{len(selection)} selections and {len(report)} reports should be equally many, at least one"
        )
    remaining = torch.stack([each.right for each in selection])  # (attacks, N)
    ranks = remaining.sum(1).argsort(stable=True).argsort()
    choice = (remaining * len(selection) + ranks[:, None]).argmin(0)
    predictions = torch.stack([each.predictions for each in report])  # (attacks, runs, N)
    index = choice.expand(1, *predictions.shape[1:])
    return Draws(predictions.gather(0, index)[0], report[0].labels), choice


def accuracy_after_tries(right: Tensor, runs: int, tries: Sequence[int]) -> tuple[float, ...]:
    """Accuracy against an attacker who may submit the same image several times and needs one wrong answer.

    Args:
        right: how many of the runs got each image right, (N,), as `Draws.right` says it.
        runs: how many draws there were of each image.
        tries: numbers of submissions, each from 1 to runs.

    Returns:
        For each number of submissions, the share of images for which all of them are right, in expectation:
        the mean over every choice of that many of an image's draws. With n tries of an image whose draws are
        right with probability p it estimates pⁿ without bias, which (right / runs)ⁿ does not.

    Raises:
        InvalidInputError: more tries than runs, of which nothing is known; counts that cannot be.

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
