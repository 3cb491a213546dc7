"""Attack: one method to write; the rest (checks, frozen model, budget) is done here, the same for all."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import final

import torch
from torch import Tensor, nn

from vqshield import checks
from vqshield.attacks.balls import Ball
from vqshield.errors import VqshieldError
from vqshield.models import Model, ask_for_logits
from vqshield.noise import Draw, Stage

_ROUNDING = 1e-6


class Attack(ABC):
    """Looks for images within a ball around the given ones that a model gets wrong.

    An attack of your own is a class with a `ball` and a method `run`. Calling it checks the images, freezes
    the model's parameters, and guarantees that no image leaves the ball.

    Example:
        >>> class Brighten(vq.attacks.Attack):
        ...     ball = vq.attacks.Linf(0.1)
        ...
        ...     def run(self, model, images, labels):
        ...         return images + 0.3
        >>> found = Brighten()(classifier, images, labels)
        >>> round(float((found - images).max()), 4)
        0.1
    """

    ball: Ball

    @abstractmethod
    def run(self, model: Model, images: Tensor, labels: Tensor) -> Tensor:
        """The adversarial images. Gradients are on; parameters are frozen; the result is projected."""

    @final
    def __call__(self, model: Model, images: Tensor, labels: Tensor) -> Tensor:
        """Attack every image, those already misclassified too; never leaves the ball or [0, 1].

        Args:
            model: images (B, q, h, w) → logits.
            images: float images in [0, 1].
            labels: their true classes, (B,), int64.

        Returns:
            The adversarial images.

        Raises:
            InvalidInputError: images or labels that cannot be; a model whose answers are no finite logits, or
                have no gradient where the attack needs one.
        """
        checks.image_batch(images)
        checks.pixel_values(images)
        labels = checks.per_image("labels", labels, images)
        if len(images) == 0:
            return images.clone()
        with _frozen(model), torch.enable_grad():
            found = self.run(partial(ask_for_logits, model), images.detach(), labels)
        found = self.ball.project(found.detach(), images.detach())
        farthest = float(self.ball.distance(found, images).max())
        if not farthest <= self.ball.eps + _ROUNDING:
            raise VqshieldError(
                f"{type(self).__name__} moved an image by {farthest}, over eps={self.ball.eps}"
            )
        return found


def random_start(ball: Ball, images: Tensor, seed: int, number: int = 0) -> Tensor:
    """Start number `number` of each image: by the seed and an image's place in the batch alone."""
    draw = Draw(seed, torch.arange(len(images), device=images.device))
    values = images[0].numel()
    return ball.start(images, draw.uniforms(Stage.ATTACK_START, number * values, values).view_as(images))


@contextmanager
def _frozen(model: Model) -> Iterator[None]:
    """The parameters need no gradients meanwhile, and buffers are restored: the running statistics of a model
    in training mode would learn from every image. Buffers outside its state are left to the model.
    """
    module = model if isinstance(model, nn.Module) else nn.Module()
    wanted = [parameter for parameter in module.parameters() if parameter.requires_grad]
    state = module.state_dict(keep_vars=True)
    kept = [(state[name], state[name].clone()) for name, _ in module.named_buffers() if name in state]
    for parameter in wanted:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in wanted:
            parameter.requires_grad_(True)
        for buffer, before in kept:
            buffer.copy_(before)
