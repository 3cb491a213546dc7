"""Auto-PGD: gradient ascent that finds its step lengths itself (Croce and Hein 2020), in an L1 ball by steps
that change few values (Croce and Hein 2021, "Mind the box").
"""

import math
from dataclasses import dataclass
from typing import NamedTuple, Self

import torch
from torch import Tensor

from vqshield.attacks.balls import L1, Ball
from vqshield.attacks.base import Attack, check_counts, random_start
from vqshield.attacks.best import EARLY, Best
from vqshield.attacks.losses import errors, list_losses, loss
from vqshield.core import checks
from vqshield.models.calling import Model, gradient

_FRESH = 0.75  # alpha: the share of a step that follows the gradient; the rest repeats the step before
_ENOUGH_RISES = 0.75  # rho: fewer rises of the loss than this share of the steps, and the steps are too long

_FIRST_SHARE = 0.2  # of all values: k of the first steps in an L1 ball
_SHRINK = 1.5  # k is this many times smaller than the number of values changed; so is a step after another
_STEADY = 0.95  # k has settled where it is not below this share of the last one
_SHORTEST = 10  # no step is shorter than the first one divided by this
_EVERY = 0.04  # of all steps: how often k and the step length are adapted


class _Point(NamedTuple):
    """Images, and one evaluation of the model there."""

    images: Tensor  # (B, q, h, w)
    gradient: Tensor
    loss: Tensor  # (B,)
    errors: Tensor  # (B,)

    def or_else(self, chosen: Tensor, other: Self) -> Self:
        """The other point for the chosen images (B,), this one for the rest."""
        image = chosen[:, None, None, None]
        return type(self)(
            torch.where(image, other.images, self.images),
            torch.where(image, other.gradient, self.gradient),
            torch.where(chosen, other.loss, self.loss),
            torch.where(chosen, other.errors, self.errors),
        )

    def of(self, some: Tensor) -> Self:
        return type(self)(*(each[some] for each in self))


@dataclass(frozen=True, kw_only=True)
class APGD(Attack):
    """Long steps with momentum, halved for an image once they stop raising the loss.

    At checkpoints that grow denser, an image returns to its best point and its step is halved if the loss
    rose in too few steps since the last checkpoint, or if the best loss is the same as there although the
    step was not halved there. The first step is 2·eps. In an L1 ball each step changes few values.

    For a random model the loss of a point is that of one evaluation, so the best point is partly a lucky one
    (`EOT` averages draws). Each climb therefore offers its point of highest loss, the one misclassified most
    often and the last one; fresh evaluations of the model decide between them and between restarts.

    Args:
        steps: gradient steps of a climb.
        loss: a name of `list_losses()`.
        random_start: whether a climb starts at a random point of the ball or at the image.
        restarts: climbs from different starts.
        judgements: fresh evaluations of the model for each candidate.
        seed: of the random starts.

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
        check_counts(self, "steps", "restarts", "judgements")
        checks.flag("random_start", self.random_start)
        checks.one_of("loss", self.loss, list_losses())

    def run(self, model: Model, images: Tensor, labels: Tensor, *, drop_lost: bool = False) -> Tensor:
        best = Best(images, labels, judgements=self.judgements, drop_lost=drop_lost)
        looks = {math.ceil(share * self.steps) for share in EARLY} if drop_lost else set()
        climb_in = _L1Climb if isinstance(self.ball, L1) else _Climb
        for restart in range(self.restarts):
            start = random_start(self.ball, images, self.seed, restart) if self.random_start else images
            some = best.places
            with best.attacked():
                climb = climb_in(self, model, images[some], labels[some], start[some])
            for number in range(1, self.steps + 1):
                with best.attacked():
                    climb.step(number)
                if number in looks:
                    stay = best.consider(model, climb.wrongest.images)
                    best.stop(stay)
                    climb.keep(stay)
                    if len(best.places) == 0:
                        return best.images
            for point in (climb.highest, climb.wrongest, climb.latest):
                best.consider(model, point.images)
        return best.images

    def run_dropping(self, model: Model, images: Tensor, labels: Tensor) -> Tensor:
        """Misclassified images stop at some steps; none in an L1 ball, whose steps remember more."""
        return self.run(model, images, labels, drop_lost=not isinstance(self.ball, L1))


class _Climb:
    """One climb of some images: where each of them is, and the best points on its way."""

    def __init__(self, attack: APGD, model: Model, images: Tensor, labels: Tensor, start: Tensor) -> None:
        self._ball, self._loss, self._model = attack.ball, loss(attack.loss), model
        self._images, self._labels = images, labels
        here = self._evaluate(start)
        self._here, self._before = here, here.images
        self.highest = self.wrongest = self.latest = here
        self._prepare(attack.steps)

    def _prepare(self, steps: int) -> None:
        self._length = torch.full_like(self._here.loss, 2 * self._ball.eps)[:, None, None, None]
        self._schedule = _Schedule(steps, self._here.loss)

    def step(self, number: int) -> None:
        fresh, here = _FRESH if number > 1 else 1.0, self._here
        moved = here.images + self._length * self._ball.steepest(here.gradient)
        step = self._ball.project(moved, self._images)
        change = fresh * (step - here.images) + (1 - fresh) * (here.images - self._before)
        last, self._before = here.loss, here.images
        self._move(here.images + change)
        rose = self.latest.loss > last
        halve = self._schedule.halve(number, rose=rose, highest=self.highest.loss)
        self._length = torch.where(halve[:, None, None, None], self._length / 2, self._length)
        self._here = self.latest.or_else(halve, self.highest)

    def keep(self, some: Tensor) -> None:
        self._images, self._labels, self._before = self._images[some], self._labels[some], self._before[some]
        self._here, self.latest = self._here.of(some), self.latest.of(some)
        self.highest, self.wrongest = self.highest.of(some), self.wrongest.of(some)
        self._length = self._length[some]
        self._schedule.keep(some)

    def _move(self, moved: Tensor) -> None:
        """Evaluate the points, projected onto the ball."""
        here = self.latest = self._evaluate(self._ball.project(moved, self._images))
        self.highest = self.highest.or_else(here.loss > self.highest.loss, here)
        wrongest = self.wrongest
        more = (here.errors == wrongest.errors) & (here.loss > wrongest.loss)
        self.wrongest = wrongest.or_else((here.errors > wrongest.errors) | more, here)

    def _evaluate(self, points: Tensor) -> _Point:
        points = points.detach().requires_grad_()
        logits = self._model(points)
        values = self._loss(logits, self._labels)
        slope = gradient(values, points)
        return _Point(points.detach(), slope, values.detach(), errors(logits.detach(), self._labels))


class _Schedule:
    """Decides at the checkpoints which images' steps are too long."""

    def __init__(self, steps: int, first: Tensor) -> None:
        self._checkpoints = checkpoints(steps)
        self._since = 0
        self._rises = torch.zeros_like(first)
        self._highest = first
        self._halved = torch.ones_like(first, dtype=torch.bool)

    def keep(self, some: Tensor) -> None:
        self._rises, self._highest = self._rises[some], self._highest[some]
        self._halved = self._halved[some]

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
    """The numbers of the steps after which step lengths are adapted: 22, 41, 57, 70, … of a hundred."""
    numbers, gap, place = set(), 22, 22  # percent
    while place <= 100:
        numbers.add(math.ceil(place * steps / 100))
        gap = max(gap - 3, 6)
        place += gap
    return sorted(numbers)


class L1Steps:
    """The sparse steps of a batch of climbs.

    In L1 the steepest step changes a single value, and a step along the sign of all values is far from
    steepest. So each step moves the k values with the largest slopes that can still move in [0, 1], all by
    the same amount; k follows how many values the best point has changed.
    """

    def __init__(self, images: Tensor, *, eps: float, steps: int) -> None:
        self._images, self._eps = images, eps
        self._values = images[0].numel()
        self._every = math.ceil(_EVERY * steps)
        self._length = torch.full((len(images),), float(eps), dtype=images.dtype, device=images.device)
        self._share = torch.full_like(self._length, _FIRST_SHARE)

    def move(self, points: Tensor, gradient: Tensor) -> Tensor:
        """The next step from each point."""
        free = torch.where(gradient > 0, points < 1, points > 0) & (gradient != 0)
        slopes = (gradient.abs() * free).flatten(1)
        count = (self._share * self._values).round().clamp(1, self._values).long()
        least = slopes.sort(1, descending=True).values.gather(1, count[:, None] - 1)
        chosen = (slopes >= least.clamp(min=torch.finfo(slopes.dtype).tiny)).view_as(gradient)
        moved = chosen.flatten(1).sum(1).clamp(min=1)
        return gradient.sign() * chosen * (self._length / moved)[:, None, None, None]

    def look(self, number: int, best: Tensor) -> Tensor:
        """After step `number`, with the best points so far: which climbs return to them, (B,). Once k, which
        follows the number of changed values, has settled, steps get shorter.
        """
        if number % self._every:
            return torch.zeros_like(self._length, dtype=torch.bool)
        changed = ((best - self._images).abs() > 1e-8).flatten(1).sum(1)
        share = (changed / self._values / _SHRINK).clamp(min=1 / self._values).to(self._share.dtype)
        settled = share >= _STEADY * self._share
        shorter = (self._length / _SHRINK).clamp(min=self._eps / _SHORTEST)
        self._length = torch.where(settled, shorter, torch.full_like(self._length, float(self._eps)))
        self._share = share
        return settled


class _L1Climb(_Climb):
    """A climb by sparse steps."""

    def _prepare(self, steps: int) -> None:
        self._sparse = L1Steps(self._images, eps=self._ball.eps, steps=steps)

    def step(self, number: int) -> None:
        here = self._here
        self._move(here.images + self._sparse.move(here.images, here.gradient))
        self._here = self.latest.or_else(self._sparse.look(number, self.highest.images), self.highest)
