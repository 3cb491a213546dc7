"""Auto-PGD (Croce and Hein 2020): gradient ascent that finds its step lengths itself."""

import math
from dataclasses import dataclass
from typing import NamedTuple, Self

import torch
from torch import Tensor

from vqshield.attacks.balls import L1, Ball
from vqshield.attacks.base import Attack, random_start
from vqshield.attacks.best import EARLY, Best
from vqshield.attacks.l1_apgd import L1Steps
from vqshield.attacks.losses import errors, list_losses, loss
from vqshield.core import checks
from vqshield.models.calling import Model, Part, asking_about, gradient

_FRESH = 0.75  # alpha: the share of a step that follows the gradient; the rest goes on as before
_ENOUGH_RISES = 0.75  # rho: fewer rises of the loss than this share of the steps, and the steps are too long


class _Point(NamedTuple):
    """Images, and what one evaluation of the model said about them."""

    images: Tensor  # (B, q, h, w)
    gradient: Tensor
    loss: Tensor  # (B,)
    errors: Tensor  # (B,)

    def or_else(self, chosen: Tensor, other: Self) -> Self:
        """The other point for the images chosen (B,), this one for the rest."""
        image = chosen[:, None, None, None]
        return type(self)(
            torch.where(image, other.images, self.images),
            torch.where(image, other.gradient, self.gradient),
            torch.where(chosen, other.loss, self.loss),
            torch.where(chosen, other.errors, self.errors),
        )

    def of(self, some: Tensor) -> Self:
        """The point of some of the images alone."""
        return type(self)(*(each[some] for each in self))


@dataclass(frozen=True, kw_only=True)
class APGD(Attack):
    """Long steps with momentum, halved for an image as soon as they stop paying.

    At checkpoints that grow denser, an image goes back to its best point so far and its step is halved if the
    loss rose in too few steps since the last checkpoint, or if the best loss is the same as there although
    the step was not halved there. The first step is 2·eps. In an L1 ball steps are those of `L1Steps`, which
    change few values each.

    For a random model the loss of a point is the average over the draws of the one evaluation that also gave
    its gradient; wrap it in EOT to have many. The best point is thus partly a lucky one. So that luck does
    not choose the result, each climb offers its point of highest loss, the one most often wrong and the last
    one, and fresh evaluations of the model decide between them and between restarts.

    Args:
        ball: where it may move an image to.
        steps: gradient steps of a climb.
        loss: what is climbed, a name of `list_losses()`.
        random_start: whether a climb starts at a random point of the ball or at the image.
        restarts: climbs from different starts.
        judgements: fresh evaluations of the model for each candidate.
        seed: of the random starts.

    Raises:
        InvalidInputError: a setting that cannot work.

    Example:
        >>> attack = vq.attacks.APGD(ball=vq.attacks.Linf(8 / 255), steps=10)
        >>> found = attack(classifier, images, labels)
        >>> int((classifier(found).argmax(1) == labels).sum())
        0
    """

    ball: Ball
    steps: int = 100
    loss: str = "cross-entropy"
    random_start: bool = True
    restarts: int = 1
    judgements: int = 2
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("steps", "restarts", "judgements"):
            checks.whole(name, getattr(self, name), least=1)
        checks.whole("seed", self.seed, least=0, below=2**64)
        checks.flag("random_start", self.random_start)
        checks.one_of("loss", self.loss, list_losses())

    def run(self, model: Model, images: Tensor, labels: Tensor) -> Tensor:
        best = Best(images, labels, judgements=self.judgements)
        for restart in range(self.restarts):
            for candidates in self._climb(model, images, labels, restart):
                best.consider(model, candidates)
        return best.images

    def run_dropping(self, model: Model, images: Tensor, labels: Tensor) -> Tensor:
        """Images that are lost leave at some steps; those of an L1 ball, whose steps remember more, stay."""
        if isinstance(self.ball, L1):
            return self.run(model, images, labels)
        best = Best(images, labels, judgements=self.judgements)
        looks = {math.ceil(share * self.steps) for share in EARLY}
        places = torch.arange(len(images), device=images.device)  # of the images that are still attacked
        for restart in range(self.restarts):
            start = self._start(images, restart)[places]
            with asking_about(Part(places, len(images))):
                climb = _Climb(self, model, images[places], labels[places], start)
            for number in range(1, self.steps + 1):
                with asking_about(Part(places, len(images))):
                    climb.step(model, number)
                if number in looks:
                    stay = ~best.consider_some(model, climb.wrongest.images, places)
                    places = places[stay]
                    climb.keep(stay)
                    if len(places) == 0:
                        return best.images
            for candidates in (climb.highest.images, climb.wrongest.images, climb.latest.images):
                best.consider_some(model, candidates, places)
        return best.images

    def _start(self, images: Tensor, restart: int) -> Tensor:
        return random_start(self.ball, images, self.seed, restart) if self.random_start else images

    def _climb(self, model: Model, images: Tensor, labels: Tensor, restart: int) -> tuple[Tensor, ...]:
        start = self._start(images, restart)
        if isinstance(self.ball, L1):
            return self._climb_l1(model, images, labels, start)
        climb = _Climb(self, model, images, labels, start)
        for number in range(1, self.steps + 1):
            climb.step(model, number)
        return climb.highest.images, climb.wrongest.images, climb.latest.images

    def _climb_l1(self, model: Model, images: Tensor, labels: Tensor, start: Tensor) -> tuple[Tensor, ...]:
        here = highest = wrongest = self._look(model, start, labels)
        sparse = L1Steps(images, eps=self.ball.eps, steps=self.steps)
        for number in range(1, self.steps + 1):
            step = sparse.move(here.images, here.gradient)
            latest = here = self._look(model, self.ball.project(here.images + step, images), labels)
            highest = highest.or_else(here.loss > highest.loss, here)
            wrongest = wrongest.or_else(_wronger(here, wrongest), here)
            here = here.or_else(sparse.look(number, highest.images), highest)
        return highest.images, wrongest.images, latest.images

    def _look(self, model: Model, points: Tensor, labels: Tensor) -> _Point:
        points = points.detach().requires_grad_()
        logits = model(points)
        values = loss(self.loss)(logits, labels)
        slope = gradient(values, points)
        return _Point(points.detach(), slope, values.detach(), errors(logits.detach(), labels))

    def _move(self, here: _Point, before: Tensor, length: Tensor, images: Tensor, *, fresh: float) -> Tensor:
        step = self.ball.project(here.images + length * self.ball.steepest(here.gradient), images)
        change = fresh * (step - here.images) + (1 - fresh) * (here.images - before)
        return self.ball.project(here.images + change, images)


def _wronger(here: _Point, than: _Point) -> Tensor:
    """Where a point is wrong more often, or as often with a higher loss, (B,)."""
    return (here.errors > than.errors) | ((here.errors == than.errors) & (here.loss > than.loss))


class _Climb:
    """One climb of some images: where each of them is, and the best points on its way."""

    def __init__(self, attack: APGD, model: Model, images: Tensor, labels: Tensor, start: Tensor) -> None:
        self._attack, self._images, self._labels = attack, images, labels
        here = attack._look(model, start, labels)
        self._here, self._before = here, here.images
        self.highest = self.wrongest = self.latest = here
        self._length = torch.full_like(here.loss, 2 * attack.ball.eps)[:, None, None, None]
        self._schedule = _Schedule(attack.steps, here.loss)

    def step(self, model: Model, number: int) -> None:
        """Step number 1, 2, …"""
        fresh, here = _FRESH if number > 1 else 1.0, self._here
        moved = self._attack._move(here, self._before, self._length, self._images, fresh=fresh)
        last, self._before = here.loss, here.images
        here = self._attack._look(model, moved, self._labels)
        self.highest = self.highest.or_else(here.loss > self.highest.loss, here)
        self.wrongest = self.wrongest.or_else(_wronger(here, self.wrongest), here)
        halve = self._schedule.halve(number, rose=here.loss > last, highest=self.highest.loss)
        self._length = torch.where(halve[:, None, None, None], self._length / 2, self._length)
        self.latest, self._here = here, here.or_else(halve, self.highest)

    def keep(self, some: Tensor) -> None:
        """Go on with some of the images alone."""
        self._images, self._labels, self._before = self._images[some], self._labels[some], self._before[some]
        self._here, self.latest = self._here.of(some), self.latest.of(some)
        self.highest, self.wrongest = self.highest.of(some), self.wrongest.of(some)
        self._length = self._length[some]
        self._schedule.keep(some)


class _Schedule:
    """Says at the checkpoints which images' steps are too long."""

    def __init__(self, steps: int, first: Tensor) -> None:
        self._checkpoints = checkpoints(steps)
        self._since = 0
        self._rises = torch.zeros_like(first)
        self._highest = first
        self._halved = torch.ones_like(first, dtype=torch.bool)

    def keep(self, some: Tensor) -> None:
        """Go on with some of the images alone."""
        self._rises, self._highest, self._halved = (
            each[some] for each in (self._rises, self._highest, self._halved)
        )

    def halve(self, number: int, *, rose: Tensor, highest: Tensor) -> Tensor:
        """After step `number`: (B,) whether to halve."""
        self._rises += rose
        if number not in self._checkpoints:
            return torch.zeros_like(rose)
        wandering = self._rises < _ENOUGH_RISES * (number - self._since)
        stuck = ~self._halved & (highest <= self._highest)
        self._since, self._rises = number, torch.zeros_like(self._rises)
        self._highest, self._halved = highest, wandering | stuck
        return self._halved


def checkpoints(steps: int) -> list[int]:
    """The numbers of the steps after which step lengths are looked at: 22, 41, 57, 70, … of a hundred."""
    found, gap, place = [], 22, 22  # percent
    while place <= 100:
        found.append(math.ceil(place * steps / 100))
        gap = max(gap - 3, 6)
        place += gap
    return sorted(set(found))
