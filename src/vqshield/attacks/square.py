"""The Square attack (Andriushchenko et al. 2020): random search with square changes; needs no gradients."""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from vqshield.attacks.balls import L2, Ball, Linf
from vqshield.attacks.base import QueryAttack, check_counts, places_in_batch
from vqshield.attacks.best import Best, most_judgements, search_dropping
from vqshield.attacks.losses import ENOUGH, margin
from vqshield.core import checks
from vqshield.core.errors import InvalidInputError
from vqshield.models.calling import Model, asking_exactly, differ
from vqshield.quantization.noise import Draw, Stage

_HALVINGS = (10, 50, 200, 1000, 2000, 4000, 6000, 8000)  # of 10,000 queries: there p is halved


@dataclass(frozen=True, kw_only=True)
class Square(QueryAttack):
    """Changes a square of the image at a time and keeps changes that raise the margin, averaged over draws.

    The first two queries show whether the model is random. If it is, a change must win twice, on fresh draws
    each time, and the current image is evaluated again whenever a change loses: its value is the mean over
    the evaluations after it won. So luck neither lets bad changes in nor keeps good ones out. The images of
    four times compete in the end, by fresh evaluations.

    Args:
        ball: an Linf or L2 ball.
        queries: the most evaluations of the model, without the judgements.
        p_init: the share of the pixels in the first squares; it is halved several times.
        judgements: fresh evaluations of the model for each image that competes in the end.
        seed: of the squares.

    Example:
        >>> attack = vq.attacks.Square(ball=vq.attacks.Linf(8 / 255), queries=20)
        >>> found = attack(classifier, images, labels)
        >>> bool((vq.attacks.margin(classifier(found), labels)
        ...       > vq.attacks.margin(classifier(images), labels)).all())
        True
    """

    ball: Ball
    queries: int = 5000
    p_init: float = 0.8
    judgements: int = 2
    seed: int = 0

    def __post_init__(self) -> None:
        checks.whole("queries", self.queries, least=2)
        checks.real("p_init", self.p_init, most=1.0)
        check_counts(self, "judgements")
        if type(self.ball) not in _MOVES:
            known = ", ".join(kind.norm for kind in _MOVES)
            raise InvalidInputError(f"ball={self.ball} is none that Square knows; it knows {known}")

    def uncounted_queries(self, draws: int = 1, *, drop_lost: bool = False) -> int:
        """The judgements of four images that compete if the model is random, or of images that may stop."""
        return most_judgements(self.judgements, draws) if drop_lost else 4 * self.judgements

    def search(
        self, model: Model, images: Tensor, labels: Tensor, marks: Sequence[int]
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """The current image at each mark; at the last one, an earlier one if a random model is weaker there.

        All images get as many queries, until nothing more can be gained with any of them.
        """
        queries, best = marks[-1], Best(images, labels, judgements=self.judgements)
        climb, quarter = _Climb(self, model, images, labels, queries), 1
        for mark in marks:
            while climb.has_step_before(mark) and bool((climb.value < ENOUGH).any()):
                climb.step()
                if climb.random and 4 * climb.used >= quarter * queries:
                    best.consider(model, climb.images)
                    quarter += 1
            last = climb.random and mark == queries
            if last and quarter <= 4:  # nothing could be gained in the last quarter
                best.consider(model, climb.images)
            yield best.images if last else climb.images, torch.full_like(labels, climb.used + best.asked)

    def search_dropping(
        self, model: Model, images: Tensor, labels: Tensor, marks: Sequence[int]
    ) -> Iterator[tuple[Tensor, Tensor]]:
        climb = _Climb(self, model, images, labels, marks[-1])
        best = Best(images, labels, judgements=self.judgements, drop_lost=True)
        return search_dropping(climb, best, model, marks)


class _Climb:
    """The search: the current images, the margin of each, and the changes to try."""

    def __init__(self, attack: Square, model: Model, images: Tensor, labels: Tensor, queries: int) -> None:
        self._moves = _MOVES[type(attack.ball)](
            attack.ball, images, Draw(attack.seed, places_in_batch(images))
        )
        self._p_init, self._queries, self._number = attack.p_init, queries, 0
        self._model, self._labels, self.images = model, labels, self._moves.start()
        with asking_exactly():
            first, second = model(self.images), model(self.images)
        self.used = 2
        self.random = differ(first, second)  # rounding, as of batches of other sizes, is not randomness
        self.value = (margin(first, labels) + margin(second, labels)) / 2
        self._count = torch.full_like(self.value, 2.0)

    def challenge(self, proposal: Tensor) -> None:
        """Take the proposal where its margin is larger."""
        first = self._margin(proposal)
        wins = first > self.value
        if self.random:
            second = self._margin(torch.where(wins[:, None, None, None], proposal, self.images))
            lost = ~wins
            wins = wins & (second > self.value)
            self._count += lost
            mean = self.value + lost * (second - self.value) / self._count.clamp(min=1)
            self.value = torch.where(wins, second, mean)
            self._count = torch.where(wins, 0.0, self._count)  # the margin that won was partly luck
        else:
            self.value = torch.where(wins, first, self.value)
        self.images = torch.where(wins[:, None, None, None], proposal, self.images)

    def keep(self, some: Tensor) -> None:
        self.images, self._labels = self.images[some], self._labels[some]
        self.value, self._count = self.value[some], self._count[some]
        self._moves.keep(some)

    def _margin(self, images: Tensor) -> Tensor:
        self.used += 1
        # Rounding would hide the small gains on a robust model that is not random.
        with nullcontext() if self.random else asking_exactly():
            return margin(self._model(images), self._labels)

    def has_step_before(self, stop: int) -> bool:
        """Whether another step fits into so many evaluations; with a random model it takes two."""
        return self.used + self.random < stop

    def step(self) -> None:
        halvings = sum(self.used > h * self._queries / 10_000 for h in _HALVINGS)
        self.challenge(self._moves.propose(self.images, self._p_init / 2**halvings, self._number))
        self._number += 1

    def advance(self, stop: int) -> None:
        while self.has_step_before(stop):
            self.step()

    def found(self) -> Tensor:
        return self.images


class _Moves(ABC):
    """The first images and the changes, which depend only on the draw, for each image its own."""

    def __init__(self, ball: Ball, images: Tensor, draw: Draw) -> None:
        self._ball, self._images, self._draw = ball, images, draw
        self._channels, self._height, self._width = images.shape[1:]

    def keep(self, some: Tensor) -> None:
        self._images, self._draw = self._images[some], self._draw[some]

    @abstractmethod
    def start(self) -> Tensor:
        """The first images."""

    @abstractmethod
    def propose(self, held: Tensor, share: float, number: int) -> Tensor:
        """The images after change number `number`, in a square of that share of the pixels."""

    def _uniforms(self, stage: Stage, number: int, count: int) -> Tensor:
        values = self._draw.uniforms(stage, number * count, count)  # (B, count)
        return values.to(self._images.dtype)

    def _signs(self, uniforms: Tensor, *shape: int) -> Tensor:
        return torch.where(uniforms < 0.5, -1.0, 1.0).to(self._images.dtype).view(-1, *shape)

    def _side(self, share: float) -> int:
        return round(math.sqrt(share * self._height * self._width))

    def _place(self, uniforms: Tensor, side: int) -> tuple[Tensor, Tensor, Tensor]:
        """A square from values (B, 2): each pixel's row and column in it, clamped; whether it is inside."""
        rows = self._along(uniforms[:, 0], side, self._height)[:, :, None]
        columns = self._along(uniforms[:, 1], side, self._width)[:, None, :]
        inside = (rows >= 0) & (rows < side) & (columns >= 0) & (columns < side)
        return rows.clamp(0, side - 1), columns.clamp(0, side - 1), inside

    def _along(self, uniforms: Tensor, side: int, length: int) -> Tensor:
        first = (uniforms * (length - side + 1)).long().clamp(max=length - side)
        return torch.arange(length, device=first.device) - first[:, None]


class _LinfMoves(_Moves):
    """Every value stays at one of its two extremes; a square sets each channel to one of them."""

    def start(self) -> Tensor:
        """Vertical stripes, one pixel wide."""
        uniforms = self._uniforms(Stage.ATTACK_START, 0, self._channels * self._width)
        stripes = self._signs(uniforms, self._channels, 1, self._width)
        return self._ball.project(self._images + self._ball.eps * stripes, self._images)

    def propose(self, held: Tensor, share: float, number: int) -> Tensor:
        """From one extreme to the other is 2·eps; the projection undoes steps beyond."""
        uniforms = self._uniforms(Stage.ATTACK_MOVE, number, 2 + self._channels)
        side = min(max(self._side(share), 1), self._height, self._width)
        inside = self._place(uniforms[:, :2], side)[2][:, None]
        change = 2 * self._ball.eps * self._signs(uniforms[:, 2:], self._channels, 1, 1)
        return self._ball.project(held + change * inside, self._images)


class _L2Moves(_Moves):
    """Bumps, half up and half down; a change moves the budget of one square to another."""

    def start(self) -> Tensor:
        """Bumps side by side, about five in a row."""
        side = max(min(self._height, self._width) // 5, 1)
        rows, columns = self._height // side, self._width // side
        uniforms = self._uniforms(Stage.ATTACK_START, 0, (self._channels + 1) * rows * columns)
        tiles = self._signs(uniforms, self._channels + 1, rows, columns)
        tiles = tiles.repeat_interleave(side, 2).repeat_interleave(side, 3)
        upright = bump(side).to(tiles).repeat(rows, columns)
        lying = bump(side).T.to(tiles).repeat(rows, columns)
        plane = torch.where(tiles[:, :1] > 0, upright, lying) * tiles[:, 1:]
        margins = (0, self._width - columns * side, 0, self._height - rows * side)
        change = self._ball.steepest(torch.nn.functional.pad(plane, margins))
        return self._ball.project(self._images + self._ball.eps * change, self._images)

    def propose(self, held: Tensor, share: float, number: int) -> Tensor:
        """Add a bump to one square, scaled to the budget of both squares and the unused budget."""
        uniforms = self._uniforms(Stage.ATTACK_MOVE, number, 5 + self._channels)
        side = min(max(self._side(share), 3) | 1, self._height, self._width)  # odd
        rows, columns, inside = self._place(uniforms[:, :2], side)
        emptied = self._place(uniforms[:, 2:4], side)[2][:, None]
        inside = inside[:, None]
        shape = bump(side).to(held)
        plane = torch.where(uniforms[:, 4, None, None] < 0.5, shape[rows, columns], shape[columns, rows])
        change = held - self._images
        here = change * inside
        direction = self._signs(uniforms[:, 5:], self._channels, 1, 1) * plane[:, None] * inside
        direction = direction + here / _lengths(here)
        left = (self._ball.eps**2 - self._ball.length(change).square()).clamp(min=0)[:, None, None, None]
        both = (change * (inside | emptied)).square().sum((2, 3), keepdim=True)
        budget = (both + left / self._channels).sqrt()  # (B, q, 1, 1)
        moved = torch.where(inside, budget * direction / _lengths(direction), change * ~emptied)
        return self._ball.project(self._images + moved, self._images)


def _lengths(change: Tensor) -> Tensor:
    """The L2 norm of each channel, (B, q, 1, 1), never zero."""
    return change.square().sum((2, 3), keepdim=True).sqrt().clamp(min=torch.finfo(change.dtype).tiny)


def bump(side: int) -> Tensor:
    """A square of unit length: a pyramid up in the upper half, one down in the lower (float64)."""
    upper, lower = side // 2, side - side // 2
    square = torch.cat([_pyramid(upper, side), -_pyramid(lower, side)])
    return square / square.square().sum().sqrt()


def _pyramid(height: int, width: int) -> Tensor:
    """The sum of 1/(j+1)² over the rings j from a pixel's own to the outermost."""
    rows = (torch.arange(height) - height // 2).abs()[:, None]
    columns = (torch.arange(width) - width // 2).abs()[None]
    rings = torch.arange(max(height, width) // 2 + 1, dtype=torch.float64)
    values = (rings + 1).pow(-2).flip(0).cumsum(0).flip(0)
    return values[torch.maximum(rows.expand(-1, width), columns.expand(height, -1))]


_MOVES: dict[type[Ball], type[_Moves]] = {Linf: _LinfMoves, L2: _L2Moves}
