"""Projected gradient descent (Madry et al. 2018)."""

import math
import re
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from vqshield.attacks.balls import Ball
from vqshield.attacks.base import Attack, check_counts, random_start
from vqshield.attacks.best import EARLY, Best
from vqshield.attacks.losses import TARGETED, Loss, list_losses, loss, targeted_margin, wrong_classes
from vqshield.core import checks
from vqshield.core.errors import InvalidInputError
from vqshield.models.calling import Model, gradient

SCHEDULES = ("constant", "linear", "cosine")


@dataclass(frozen=True, kw_only=True)
class PGD(Attack):
    """Steps up the loss, projected back onto the ball.

    Random starts depend only on the seed and an image's place in the batch, not on the global RNG.

    Args:
        steps: gradient steps of a climb.
        step: the length of the first one, in units of [0, 1], or "eps/N", a share of eps. The default is
            at least as strong as the paper's eps/10 and the common 2.5·eps/steps.
        schedule: how steps shrink towards the end: "constant" (not at all), "linear" or "cosine".
        momentum: the weight of earlier directions (Dong et al. 2018).
        loss: a name of `list_losses()`; or "targeted-margin", the margin of one wrong class: of the likeliest
            at the image in the first climb, of the next likeliest in each restart.
        random_start: whether a climb starts at a random point of the ball or at the image.
        restarts: climbs from different starts.
        candidates: iterates of each climb, evenly spaced over its second half, that compete for the result;
            1: the last alone.
        judgements: fresh evaluations of the model that decide between candidates, first by the share of
            misclassified draws, then by the margin; never the draws that the gradients came from.
        seed: of the random starts.

    Example:
        >>> attack = vq.attacks.PGD(ball=vq.attacks.Linf(8 / 255), steps=20)
        >>> found = attack(classifier, images, labels)
        >>> int((classifier(found).argmax(1) == labels).sum())
        0
    """

    ball: Ball
    steps: int = 20
    step: float | str = "eps/4"
    schedule: str = "constant"
    momentum: float = 0.0
    loss: str = "cross-entropy"
    random_start: bool = True
    restarts: int = 1
    candidates: int = 1
    judgements: int = 2
    seed: int = 0

    def __post_init__(self) -> None:
        check_counts(self, "steps", "restarts", "candidates", "judgements")
        checks.flag("random_start", self.random_start)
        checks.real("momentum", self.momentum)
        checks.one_of("schedule", self.schedule, SCHEDULES)
        checks.one_of("loss", self.loss, [*list_losses(), TARGETED])
        checks.real("step", self._first_step)

    def run(self, model: Model, images: Tensor, labels: Tensor, *, drop_lost: bool = False) -> Tensor:
        looks, moved, targets = self._judged_steps(), images, self._targets(model, images, labels)
        nothing_to_choose = not drop_lost and self.restarts == len(looks) == 1
        if drop_lost:
            looks |= {math.ceil(share * self.steps) for share in EARLY}
        best = Best(images, labels, judgements=self.judgements, drop_lost=drop_lost)
        for restart in range(self.restarts):
            start = random_start(self.ball, images, self.seed, restart) if self.random_start else images
            moved = start[best.places]
            direction = torch.zeros_like(moved)
            for number in range(1, self.steps + 1):
                raised = self._raised(targets, restart, best.places)
                with best.attacked():
                    moved = moved.detach().requires_grad_()
                    slope = gradient(raised(model(moved), labels[best.places]), moved)
                moved, direction = self._step(moved, images[best.places], direction, slope, number - 1)
                if number in looks and not nothing_to_choose:
                    stay = best.consider(model, moved)
                    moved, direction = moved[stay], direction[stay]
                    best.stop(stay)
                    if len(best.places) == 0:
                        return best.images
        return moved if nothing_to_choose else best.images

    def run_dropping(self, model: Model, images: Tensor, labels: Tensor) -> Tensor:
        """Misclassified images stop at some early steps, and wherever candidates are judged."""
        return self.run(model, images, labels, drop_lost=True)

    def _judged_steps(self) -> set[int]:
        """The numbers of the steps whose iterates compete, the last one always."""
        half = self.steps / 2
        return {self.steps - math.floor(i * half / self.candidates) for i in range(self.candidates)}

    def _targets(self, model: Model, images: Tensor, labels: Tensor) -> Tensor | None:
        """The wrong classes in the order of the restarts that climb towards them, (classes − 1, B)."""
        if self.loss != TARGETED:
            return None
        logits = torch.stack([model(images).detach() for _ in range(self.judgements)])
        return wrong_classes(logits, labels)

    def _raised(self, targets: Tensor | None, restart: int, places: Tensor) -> Loss:
        """The loss of a restart for the images in some places."""
        if targets is None:
            return loss(self.loss)
        return partial(targeted_margin, targets=targets[restart % len(targets)][places])

    def _step(
        self, moved: Tensor, images: Tensor, direction: Tensor, slope: Tensor, number: int
    ) -> tuple[Tensor, Tensor]:
        """The images after step `number` from 0, and their direction."""
        # Scaled to a mean size of one, so that no step's gradient outweighs the others' in the momentum.
        size = slope.abs().mean((1, 2, 3), keepdim=True).clamp(min=torch.finfo(slope.dtype).tiny)
        direction = self.momentum * direction + slope / size
        done = number / self.steps
        shrink = {"constant": 1.0, "linear": 1 - done, "cosine": (1 + math.cos(math.pi * done)) / 2}
        change = self._first_step * shrink[self.schedule] * self.ball.steepest(direction)
        return self.ball.project(moved.detach() + change, images), direction

    @property
    def _first_step(self) -> float:
        if not isinstance(self.step, str):
            return self.step
        share = re.fullmatch(r"eps/([1-9]\d*)", self.step)
        if share is None:
            raise InvalidInputError(
                f"step={self.step!r} should be a length such as 2/255, or a share of the budget such as eps/4"
            )
        return self.ball.eps / int(share[1])
