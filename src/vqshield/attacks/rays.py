"""RayS (Chen and Gu 2020): a search for the nearest misclassified image that sees predicted classes alone."""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from vqshield.attacks.balls import Ball
from vqshield.attacks.base import QueryAttack, check_counts, places_in_batch
from vqshield.attacks.best import Best, most_judgements, search_dropping
from vqshield.attacks.losses import errors
from vqshield.core import checks
from vqshield.models.calling import Model, asking_exactly, differ
from vqshield.quantization.noise import Draw, Stage

_EDGE = 0.2  # a change is better if at least .5 + this of the draws are misclassified
_CONVINCED, _DISCOURAGED = 3.0, -1.0  # log odds at which a change is kept, or given up
_GAIN = 0.1  # how far a query on the current ray moves its radius, as a share of it
_JUDGEMENTS = 1  # of a ray at the whole budget, before it may stop
_FIRST_LOOK = 6  # halvings of the first radius with a random model: later queries correct it


@dataclass(frozen=True, kw_only=True)
class RayS(QueryAttack):
    """Follows rays along which every value goes up or down, and keeps the one that is misclassified soonest.

    It flips blocks of a ray's signs in turn, from the whole image down to single values, and queries the
    flipped ray at the radius of the best one so far. One query is enough to give it up; where it is
    misclassified, halving finds its own radius. Only the class is used, and whether the model is random.

    A random model has no such radius. The current radius is then the one at which half of the draws are
    misclassified; it follows every query on the current ray. A flipped ray gets queries there until a
    sequential test (Wald 1945) decides between half and seven in ten. It returns the ray at the whole budget.

    Args:
        ball: the allowed changes; rays are the same in every norm, their lengths are not.
        queries: the most evaluations of the model per image; with a deterministic model an image stops once
            it is misclassified within the ball.
        tolerance: the precision of a radius, as a share of the range of values; a coarse one hides gains.
        seed: of the first rays.

    Example:
        >>> attack = vq.attacks.RayS(ball=vq.attacks.Linf(8 / 255), queries=150)
        >>> found = attack(classifier, images, labels)
        >>> int((classifier(found).argmax(1) == labels).sum()) < int(
        ...     (classifier(images).argmax(1) == labels).sum())
        True
    """

    ball: Ball
    queries: int = 10_000
    tolerance: float = 1e-4
    seed: int = 0

    def __post_init__(self) -> None:
        checks.whole("queries", self.queries, least=2)
        checks.real("tolerance", self.tolerance, least=1e-6, most=1.0)
        check_counts(self)

    def uncounted_queries(self, draws: int = 1, *, drop_lost: bool = False) -> int:
        return most_judgements(_JUDGEMENTS, draws) if drop_lost else 0

    def _rays(self, model: Model, images: Tensor, labels: Tensor) -> "_Exact | _Noisy":
        """The search for this model, by whether two evaluations differ."""
        search = _Noisy if differ(model(images), model(images)) else _Exact
        return search(self, model, images, labels)

    def search(
        self, model: Model, images: Tensor, labels: Tensor, marks: Sequence[int]
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """The image on the best ray: where it is misclassified within the ball, else at its surface."""
        return self._rays(model, images, labels).traced(marks)

    def search_dropping(
        self, model: Model, images: Tensor, labels: Tensor, marks: Sequence[int]
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Images that are misclassified at the whole budget stop; with a deterministic model always."""
        rays = self._rays(model, images, labels)
        if isinstance(rays, _Exact):
            return rays.traced(marks)
        best = Best(images, labels, judgements=_JUDGEMENTS, drop_lost=True)
        return search_dropping(rays, best, model, marks)


class _Rays(ABC):
    """The best ray of each image so far and where its search stands, and what to flip next."""

    def __init__(self, attack: RayS, model: Model, images: Tensor, labels: Tensor) -> None:
        self._model, self._images, self._labels = model, images, labels
        self._values = images[0].numel()
        whole = float(attack.ball.length(torch.ones_like(images[:1]))[0])
        self._budget = min(attack.ball.eps / whole, 1.0)  # radii are shares of the whole range of values
        self._tolerance = attack.tolerance
        self._places = torch.arange(self._values, device=images.device)
        self._deepest = int(math.log2(self._values))
        draw = Draw(attack.seed, places_in_batch(images))
        self.signs = self._first_rays(draw)  # (B, n)
        self.radius = torch.ones(len(images), dtype=images.dtype, device=images.device)
        self.stage = torch.full_like(labels, -1)  # -1: the first ray itself, nothing flipped
        self.block = torch.zeros_like(labels)
        self.used = torch.full_like(labels, 2)
        self._draws = 1  # in each answer so far
        self._evaluations = 2  # of the model, in batches of whatever needs it

    def advance(self, stop: int) -> None:
        while self._evaluations < stop and self.step():
            self._evaluations += 1

    def traced(self, marks: Sequence[int]) -> Iterator[tuple[Tensor, Tensor]]:
        """The best images after each of these numbers of evaluations, and how many each image took."""
        for mark in marks:
            self.advance(mark)
            yield self.found(), self.used.clone()

    @abstractmethod
    def step(self) -> bool:
        """Evaluate every image that needs it; False where none does."""

    @abstractmethod
    def found(self) -> Tensor:
        """The best images within the ball."""

    def _first_rays(self, draw: Draw) -> Tensor:
        """Vertical stripes, one pixel wide, as Square has them."""
        channels, height, width = self._images.shape[1:]
        stripes = draw.signs(Stage.ATTACK_START, 0, channels * width).view(-1, channels, 1, width)
        return stripes.expand(-1, -1, height, -1).flatten(1).to(self._images.dtype)

    def _flipped(self, some: Tensor) -> Tensor:
        """The rays of some images, with their block flipped."""
        parts = 2 ** self.stage[some].clamp(min=0)
        begin = self.block[some] * self._values // parts
        end = (self.block[some] + 1) * self._values // parts
        end = torch.where(self.stage[some] < 0, begin, end)
        inside = (self._places >= begin[:, None]) & (self._places < end[:, None])
        signs = self.signs[some]
        return torch.where(inside, -signs, signs)

    def _next_block(self, some: Tensor) -> None:
        """Go to the next block where `some` is True; after the last block, to blocks of half the size."""
        block, stage = self.block + 1, self.stage
        over = block >= 2 ** stage.clamp(min=0)
        stage = torch.where(over, torch.where(stage < self._deepest, stage + 1, 1), stage)
        self.stage = torch.where(some, stage, self.stage)
        self.block = torch.where(some, torch.where(over, 0, block), self.block)

    def _wrong(self, some: Tensor, signs: Tensor, radius: Tensor) -> Tensor:
        """The share of misclassified draws of some images, moved along rays by radii."""
        self.used[some] += 1
        logits = self._model(self._at(some, signs, radius))
        self._draws = logits.numel() // (len(some) * logits.shape[-1])
        return errors(logits, self._labels[some])

    def _at(self, some: Tensor, signs: Tensor, radius: Tensor) -> Tensor:
        images = self._images[some]
        return (images + (radius[:, None] * signs).view_as(images)).clamp(0, 1)


class _Exact(_Rays):
    """The paper's search, for a deterministic model, by exact logits: it ends on the decision boundary."""

    def __init__(self, attack: RayS, model: Model, images: Tensor, labels: Tensor) -> None:
        super().__init__(attack, model, images, labels)
        self._halving = torch.zeros_like(labels, dtype=torch.bool)
        self._low, self._high = torch.zeros_like(self.radius), self.radius.clone()

    def step(self) -> bool:
        some = (self.radius > self._budget).nonzero()[:, 0]
        if not len(some):
            return False
        halving, low, high = self._halving[some], self._low[some], self._high[some]
        rays, middle = self._flipped(some), (low + high) / 2
        wrong = self._wrong(some, rays, torch.where(halving, middle, self.radius[some])) > 0.5
        self._low[some] = torch.where(halving, torch.where(wrong, low, middle), 0.0)
        self._high[some] = high = torch.where(halving, torch.where(wrong, middle, high), self.radius[some])
        narrow = (high - self._low[some] <= self._tolerance) | (high <= self._budget)
        done = torch.where(halving, narrow, ~wrong)
        better = done & halving & (high < self.radius[some])
        self.signs[some] = torch.where(better[:, None], rays, self.signs[some])
        self.radius[some] = torch.where(better, high, self.radius[some])
        self._halving[some] = ~done
        everywhere = torch.zeros_like(self._halving)
        everywhere[some] = done
        self._next_block(everywhere)
        return True

    def _wrong(self, some: Tensor, signs: Tensor, radius: Tensor) -> Tensor:
        with asking_exactly():
            return super()._wrong(some, signs, radius)

    def found(self) -> Tensor:
        every = torch.arange(len(self.radius), device=self.radius.device)
        return self._at(every, self.signs, self.radius.clamp(max=self._budget))


class _Noisy(_Rays):
    """The search for a random model: radii that follow the queries, and a sequential test."""

    def __init__(self, attack: RayS, model: Model, images: Tensor, labels: Tensor) -> None:
        super().__init__(attack, model, images, labels)
        self._evidence = torch.zeros_like(self.radius)
        self._challenged = torch.zeros_like(labels, dtype=torch.bool)  # else it queries the current ray
        self._every = torch.arange(len(labels), device=labels.device)
        self._looks, self._low, self._high = 0, torch.zeros_like(self.radius), self.radius.clone()

    def step(self) -> bool:
        if self._looks < _FIRST_LOOK:
            self._first_look()
            return True
        rays = torch.where(self._challenged[:, None], self._flipped(self._every), self.signs)
        wrong = self._wrong(self._every, rays, self.radius)
        nudged = self.radius * torch.exp(_GAIN * (1 - 2 * wrong))
        evidence = self._evidence + self._draws * (
            wrong * math.log(1 + 2 * _EDGE) + (1 - wrong) * math.log(1 - 2 * _EDGE)
        )
        kept = self._challenged & (evidence >= _CONVINCED)
        given_up = self._challenged & (evidence <= _DISCOURAGED)
        self.signs = torch.where(kept[:, None], rays, self.signs)
        self.radius = torch.where(self._challenged & ~kept, self.radius, nudged).clamp(max=1.0)
        self._next_block(kept | given_up)
        undecided = self._challenged & ~(kept | given_up)
        self._evidence = torch.where(undecided, evidence, 0.0)
        self._challenged = undecided | ~self._challenged
        return True

    def found(self) -> Tensor:
        return self._at(self._every, self.signs, torch.full_like(self.radius, self._budget))

    def keep(self, some: Tensor) -> None:
        searched = ("_images", "_labels", "signs", "radius", "stage", "block", "used")
        for name in (*searched, "_evidence", "_challenged", "_low", "_high"):
            setattr(self, name, getattr(self, name)[some])
        self._every = torch.arange(len(self._labels), device=self._labels.device)

    def _first_look(self) -> None:
        middle = (self._low + self._high) / 2
        wrong = self._wrong(self._every, self.signs, middle) > 0.5
        self._low = torch.where(wrong, self._low, middle)
        self._high = torch.where(wrong, middle, self._high)
        self.radius, self._looks = self._high, self._looks + 1
        if self._looks == _FIRST_LOOK:
            self._next_block(torch.ones_like(self._challenged))
