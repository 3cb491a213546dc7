"""Projected gradient descent (Madry et al. 2018)."""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from vqshield.attacks.balls import Ball
from vqshield.attacks.base import Attack, random_start
from vqshield.attacks.best import EARLY, Best
from vqshield.attacks.losses import TARGETED, Loss, list_losses, loss, targeted_margin, wrong_classes
from vqshield.core import checks
from vqshield.core.errors import InvalidInputError
from vqshield.models.calling import Model, Part, asking_about, gradient

SCHEDULES = ("constant", "linear", "cosine")


@dataclass(frozen=True, kw_only=True)
class PGD(Attack):
    """Steps up the loss, projected back onto the ball.

    Random starts depend on the seed and an image's place in the batch alone; the global RNG is not touched.

    Args:
        ball: where it may move an image to.
        steps: gradient steps of a climb.
        step: the length of the first one, in units of [0, 1], or "eps/N", a share of eps. The default is
            at least as strong as the paper's eps/10 and the common 2.5·eps/steps. Accuracy of the bundled
            classifier on 100 images at 2/255 with eps/10, eps/4 and 2.5·eps/steps: 22, 15 and 17 % after 20
            steps; 15, 13 and 18 % after 50; 12, 12 and 17 % after 100. With momentum 0.75, a cosine schedule
            and the margin loss: 35, 19 and 29 % after 20 steps; 12, 11 and 28 % after 100.
        schedule: how steps shrink towards the end: "constant" (not at all), "linear" or "cosine".
        momentum: how much of the earlier directions stays (Dong et al. 2018).
        loss: what is climbed, a name of `list_losses()`; or "targeted-margin", the margin of one wrong class:
            of the likeliest at the image in the first climb, of the next likeliest in each restart.
        random_start: whether a climb starts at a random point of the ball or at the image.
        restarts: climbs from different starts.
        candidates: iterates of each climb, evenly spaced over its second half, that compete for the result;
            1: the last alone.
        judgements: fresh evaluations of the model that decide between candidates, first by the share of wrong
            answers, then by the margin: never the draws that the gradients came from.
        seed: of the random starts.

    Raises:
        InvalidInputError: a setting that cannot work.

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
        for name in ("steps", "restarts", "candidates", "judgements"):
            checks.whole(name, getattr(self, name), least=1)
        checks.whole("seed", self.seed, least=0, below=2**64)
        checks.flag("random_start", self.random_start)
        checks.real("momentum", self.momentum)
        checks.one_of("schedule", self.schedule, SCHEDULES)
        checks.one_of("loss", self.loss, [*list_losses(), TARGETED])
        checks.real("step", self._first_step)

    def run(self, model: Model, images: Tensor, labels: Tensor) -> Tensor:
        wanted, moved = self._wanted(), images
        targets = self._targets(model, images, labels)
        best = Best(images, labels, judgements=self.judgements)
        for restart in range(self.restarts):
            climb = self._climb(model, images, labels, restart, self._raised(targets, restart))
            for number, moved in enumerate(climb, start=1):
                if number in wanted and (self.restarts > 1 or len(wanted) > 1):
                    best.consider(model, moved)
        return moved if self.restarts == 1 and len(wanted) == 1 else best.images

    def run_dropping(self, model: Model, images: Tensor, labels: Tensor) -> Tensor:
        """Images that are lost leave at some early steps, and wherever candidates are judged."""
        looks = self._wanted() | {math.ceil(share * self.steps) for share in EARLY}
        targets = self._targets(model, images, labels)
        best = Best(images, labels, judgements=self.judgements)
        places = torch.arange(len(images), device=images.device)  # of the images that are still attacked
        for restart in range(self.restarts):
            moved = self._start(images, restart)[places]
            direction = torch.zeros_like(moved)
            for number in range(self.steps):
                with asking_about(Part(places, len(images))):
                    raised = self._raised(targets, restart, places)
                    slope = self._slope(model, moved, labels[places], raised)
                moved, direction = self._step(moved, images[places], direction, slope, number)
                if number + 1 in looks:
                    stay = ~best.consider_some(model, moved, places)
                    moved, direction, places = moved[stay], direction[stay], places[stay]
                    if len(places) == 0:
                        return best.images
        return best.images

    def _wanted(self) -> set[int]:
        """The numbers of the steps whose iterates compete, the last one always."""
        half = self.steps / 2
        return {self.steps - math.floor(i * half / self.candidates) for i in range(self.candidates)}

    def _targets(self, model: Model, images: Tensor, labels: Tensor) -> Tensor | None:
        """The wrong classes in the order in which climbs go for them, (classes − 1, B), where they do."""
        if self.loss != TARGETED:
            return None
        logits = torch.stack([model(images).detach() for _ in range(self.judgements)])
        return wrong_classes(logits, labels)

    def _raised(self, targets: Tensor | None, restart: int, places: Tensor | None = None) -> Loss:
        """What a climb raises, of the images in some places, or of all."""
        if targets is None:
            return loss(self.loss)
        chosen = targets[restart % len(targets)]
        return partial(targeted_margin, targets=chosen if places is None else chosen[places])

    def _start(self, images: Tensor, restart: int) -> Tensor:
        return random_start(self.ball, images, self.seed, restart) if self.random_start else images

    def _climb(
        self, model: Model, images: Tensor, labels: Tensor, restart: int, raised: Loss
    ) -> Iterator[Tensor]:
        moved = self._start(images, restart)
        direction = torch.zeros_like(images)
        for number in range(self.steps):
            slope = self._slope(model, moved, labels, raised)
            moved, direction = self._step(moved, images, direction, slope, number)
            yield moved

    def _slope(self, model: Model, moved: Tensor, labels: Tensor, raised: Loss) -> Tensor:
        moved = moved.detach().requires_grad_()
        return gradient(raised(model(moved), labels), moved)

    def _step(
        self, moved: Tensor, images: Tensor, direction: Tensor, slope: Tensor, number: int
    ) -> tuple[Tensor, Tensor]:
        """Where the images are after this step, and which way they went."""
        # Scaled to a mean size of one, so that no step's gradient outweighs the others' in the momentum.
        size = slope.abs().mean((1, 2, 3), keepdim=True).clamp(min=torch.finfo(slope.dtype).tiny)
        direction = self.momentum * direction + slope / size
        change = self._length(number) * self.ball.steepest(direction)
        return self.ball.project(moved.detach() + change, images), direction

    @property
    def _first_step(self) -> float:
        """The length of the first step: as it was given, or a share of eps."""
        if not isinstance(self.step, str):
            return self.step
        share = re.fullmatch(r"eps/([1-9]\d*)", self.step)
        if share is None:
            raise InvalidInputError(
                f"step={self.step!r} should be a length such as 2/255, or a share of the budget such as eps/4"
            )
        return self.ball.eps / int(share[1])

    def _length(self, number: int) -> float:
        first = self._first_step
        done = number / self.steps
        shrink = {"constant": 1.0, "linear": 1 - done, "cosine": (1 + math.cos(math.pi * done)) / 2}
        return first * shrink[self.schedule]
