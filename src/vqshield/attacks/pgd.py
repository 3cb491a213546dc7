"""Projected gradient descent (Madry et al. 2018)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from vqshield import checks
from vqshield.attacks.balls import Linf
from vqshield.attacks.base import Attack, Model, cross_entropy
from vqshield.noise import Draw, Stage


@dataclass(frozen=True, kw_only=True)
class PGD(Attack):
    """Steps of fixed length up the loss, projected back onto the ball.

    step is the length of a step, eps/10 if not given (the paper's for CIFAR). With several restarts the one
    that ends with the highest loss is kept, judged by the model's own draws at that moment, which are other
    draws than those an evaluation reports on. Random starts depend on the seed and an image's place in the
    batch alone; the global RNG is not touched.
    """

    ball: Linf
    steps: int = 20
    step: float | None = None
    random_start: bool = True
    restarts: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        checks.whole("steps", self.steps, least=1)
        checks.whole("restarts", self.restarts, least=1)
        checks.whole("seed", self.seed, least=0, below=2**64)
        if self.step is not None:
            checks.real("step", self.step)

    def run(self, model: Model, images: Tensor, labels: Tensor) -> Tensor:
        """The best restart of each image."""
        best = images
        highest = torch.full(images.shape[:1], -torch.inf, dtype=images.dtype, device=images.device)
        for restart in range(self.restarts):
            found = self._climb(model, images, labels, restart)
            if self.restarts == 1:
                return found
            with torch.no_grad():
                losses = cross_entropy(model(found), labels)
            better = losses > highest
            best = torch.where(better[:, None, None, None], found, best)
            highest = torch.where(better, losses, highest)
        return best

    def _climb(self, model: Model, images: Tensor, labels: Tensor, restart: int) -> Tensor:
        length = self.ball.eps / 10 if self.step is None else self.step
        moved = self._start(images, restart) if self.random_start else images
        for _ in range(self.steps):
            moved = moved.detach().requires_grad_()
            loss = cross_entropy(model(moved), labels).sum()
            (gradient,) = torch.autograd.grad(loss, moved)
            moved = self.ball.project(moved.detach() + length * self.ball.steepest(gradient), images)
        return moved

    def _start(self, images: Tensor, restart: int) -> Tensor:
        draw = Draw(self.seed, torch.arange(len(images), device=images.device))
        values = images[0].numel()
        uniforms = draw.uniforms(Stage.ATTACK_START, restart * values, values).view_as(images)
        return self.ball.start(images, uniforms)
