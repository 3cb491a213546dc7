"""Attack: one method to write; the rest (checks, frozen model, budget) is done here, the same for all."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import final

import torch
from torch import Tensor, nn

from vqshield import checks
from vqshield.attacks.balls import Linf
from vqshield.errors import InvalidInputError, VqshieldError

Model = Callable[[Tensor], Tensor]
"""Images (B, q, h, w) → logits (B, classes), or (draws, B, classes) of a model that averages over draws."""

_ROUNDING = 1e-6


class Attack(ABC):
    """Looks for images within a ball around the given ones that a model gets wrong."""

    ball: Linf

    @abstractmethod
    def run(self, model: Model, images: Tensor, labels: Tensor) -> Tensor:
        """The adversarial images. Gradients are on; parameters are frozen; the result is projected."""

    @final
    def __call__(self, model: Model, images: Tensor, labels: Tensor) -> Tensor:
        """Attack every image, those already misclassified too; never leaves the ball or [0, 1]."""
        checks.image_batch(images)
        checks.pixel_values(images)
        labels = checks.per_image("labels", labels, images)
        if len(images) == 0:
            return images.clone()
        with _frozen(model), torch.enable_grad():
            found = self.run(model, images.detach(), labels)
        found = self.ball.project(found.detach(), images.detach())
        farthest = float(self.ball.distance(found, images).max())
        if not farthest <= self.ball.eps + _ROUNDING:
            raise VqshieldError(
                f"{type(self).__name__} moved an image by {farthest}, over eps={self.ball.eps}"
            )
        return found


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Loss per image, (B,); draws in front of the batch dimension are averaged."""
    if logits.shape[-2:-1] != labels.shape:
        raise InvalidInputError(
            f"logits of shape {tuple(logits.shape)} should be (..., {len(labels)}, classes): a row per image"
        )
    chosen = labels.expand(logits.shape[:-1])[..., None]
    losses = -logits.log_softmax(-1).gather(-1, chosen)[..., 0]
    return losses.reshape(-1, len(labels)).mean(0)


@contextmanager
def _frozen(model: Model) -> Iterator[None]:
    """No gradients for the parameters: only those of the images are wanted."""
    module = model if isinstance(model, nn.Module) else None
    wanted = [p for p in module.parameters() if p.requires_grad] if module else []
    for parameter in wanted:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in wanted:
            parameter.requires_grad_(True)
