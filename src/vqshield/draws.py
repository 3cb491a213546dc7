"""Repeated evaluation of a random model: what it answers for each image in each of several runs."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from vqshield import checks


@dataclass(frozen=True)
class Draws:
    """Predicted classes (runs, N) beside the true ones (N,)."""

    predictions: Tensor
    labels: Tensor

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


def evaluate(
    model: Callable[[Tensor], Tensor], images: Tensor, labels: Tensor, *, runs: int = 10, batch: int = 500
) -> Draws:
    """The answers of `runs` fresh draws of the model for every image."""
    checks.image_batch(images)
    checks.pixel_values(images)
    labels = checks.per_image("labels", labels, images)
    checks.whole("runs", runs, least=1)
    checks.whole("batch", batch, least=1)
    predictions = torch.stack([torch.cat(list(_answers(model, images, batch))) for _ in range(runs)])
    return Draws(predictions.cpu(), labels.cpu())


@torch.no_grad()
def _answers(model: Callable[[Tensor], Tensor], images: Tensor, batch: int) -> Iterator[Tensor]:
    for part in torch.split(images, batch):
        yield model(part).argmax(-1)
