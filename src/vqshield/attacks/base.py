"""Attack: one method to write; the rest (checks, frozen model, budget) is done here, the same for all."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import final

import torch
from torch import Tensor, nn

from vqshield.attacks.balls import Ball
from vqshield.attacks.eot import draws_a_call
from vqshield.core import checks
from vqshield.core.errors import InvalidInputError, VqshieldError
from vqshield.models.calling import Model, ask_for_logits, asked_part
from vqshield.quantization.noise import Draw, Stage

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

    def run_dropping(self, model: Model, images: Tensor, labels: Tensor) -> Tensor:
        """The same, where images that are lost for certain need no further steps; all take all of them, in an
        attack that has no such method of its own.
        """
        return self.run(model, images, labels)

    @final
    def __call__(self, model: Model, images: Tensor, labels: Tensor, *, drop_lost: bool = False) -> Tensor:
        """Attack every image, those already misclassified too; never leaves the ball or [0, 1].

        Args:
            model: images (B, q, h, w) → logits.
            images: float images in [0, 1].
            labels: their true classes, (B,), int64.
            drop_lost: whether an image takes no more steps once the model gets it wrong for certain: in every
                one of ten fresh draws, or once, if it is not random. Other images are not affected.

        Returns:
            The adversarial images.

        Raises:
            InvalidInputError: images or labels that cannot be; a model whose answers are no finite logits, or
                have no gradient where the attack needs one.
        """
        labels = _checked(images, labels)
        if len(images) == 0:
            return images.clone()
        with _frozen(model), torch.enable_grad():
            run = self.run_dropping if drop_lost else self.run
            found = run(partial(ask_for_logits, model), images.detach(), labels)
        return self._within(found, images)

    def _within(self, found: Tensor, images: Tensor) -> Tensor:
        """What was found, projected onto the ball: the one way out of every attack."""
        found = self.ball.project(found.detach(), images.detach())
        farthest = float(self.ball.distance(found, images).max())
        if not farthest <= self.ball.eps + _ROUNDING:
            raise VqshieldError(
                f"{type(self).__name__} moved an image by {farthest}, over eps={self.ball.eps}"
            )
        return found


@dataclass(frozen=True)
class QueryTrace:
    """What an attack that asks for answers had found after given numbers of calls.

    Args:
        calls: the numbers of calls of the model for an image, ascending; every draw is a call.
        images: the best images at each of them, (B, q, h, w).
        used: how many calls each image had taken by then, (len(calls), B): never more than those allowed.

    Example:
        >>> square = vq.attacks.Square(ball=vq.attacks.Linf(8 / 255))
        >>> trace = square.trace(classifier, images, labels, calls=(10, 40))
        >>> trace.calls, trace.used.shape
        ((10, 40), torch.Size([2, 8]))
    """

    calls: tuple[int, ...]
    images: tuple[Tensor, ...]
    used: Tensor


class QueryAttack(Attack):
    """An attack that needs a model's answers and no gradients, and counts how often it asks.

    One of your own has a method `search`; calling and tracing it follow from that.

    Example:
        >>> isinstance(vq.attacks.Square(ball=vq.attacks.Linf(8 / 255)), vq.attacks.QueryAttack)
        True
    """

    queries: int
    """The most evaluations of the model in a call of the attack; a trace has marks of its own."""

    @property
    def besides(self) -> int:
        """The most evaluations that a search makes without counting them towards its marks."""
        return 0

    def besides_dropping(self, draws: int) -> int:
        """The same of a search that lost images leave, of a model whose every answer is of so many draws."""
        return self.besides

    @abstractmethod
    def search(
        self, model: Model, images: Tensor, labels: Tensor, marks: Sequence[int]
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """After each of these numbers of evaluations, ascending, the best images and how many evaluations
        each of them took, those besides the marks too, (B,); the search may end at the last one.
        """

    def search_dropping(
        self, model: Model, images: Tensor, labels: Tensor, marks: Sequence[int]
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """The same, where images that are lost for certain need not be asked about any more; all are, in an
        attack that has no such method of its own.
        """
        return self.search(model, images, labels, marks)

    @torch.no_grad()
    def run(self, model: Model, images: Tensor, labels: Tensor) -> Tensor:
        """What is found by the end of the search."""
        return list(self.search(model, images, labels, (self.queries,)))[-1][0]

    @torch.no_grad()
    def run_dropping(self, model: Model, images: Tensor, labels: Tensor) -> Tensor:
        """The same, where images that are lost for certain may leave."""
        return list(self.search_dropping(model, images, labels, (self.queries,)))[-1][0]

    @final
    def trace(
        self, model: Model, images: Tensor, labels: Tensor, calls: Sequence[int], *, drop_lost: bool = False
    ) -> QueryTrace:
        """One search, and what it had found after each of these numbers of calls.

        Args:
            model: images (B, q, h, w) → logits; where it is an EOT of several draws, each draw is a call.
            images: float images in [0, 1].
            labels: their true classes, (B,), int64.
            calls: ascending; the last one takes the place of `queries`.
            drop_lost: whether images that are lost for certain may leave, as of a call of the attack. None
                leaves where finding out would take more than a tenth of the first calls.

        Raises:
            InvalidInputError: as for a call of the attack; numbers of calls that do not ascend, or that are
                too few for a first answer.

        Example:
            >>> attack = vq.attacks.RayS(ball=vq.attacks.Linf(8 / 255))
            >>> found = attack.trace(classifier, images, labels, calls=(20, 60))
            >>> [each.shape[0] for each in found.images]
            [8, 8]
            >>> found.used.amax(1).tolist()
            [20, 60]
        """
        labels = _checked(images, labels)
        draws = draws_a_call(model)
        besides, search = self.besides, self.search
        if drop_lost and calls and 10 * draws * self.besides_dropping(draws) <= calls[0]:
            besides, search = self.besides_dropping(draws), self.search_dropping
        marks = [number // draws - besides for number in calls]
        if not marks or sorted({*calls}) != list(calls) or marks[0] < 2:
            raise InvalidInputError(
                f"calls={tuple(calls)} should ascend, the first at least {(2 + besides) * draws}, for "
                f"{type(self).__name__} with {draws} draws a query"
            )
        if len(images) == 0:
            return QueryTrace(tuple(calls), (images.clone(),) * len(marks), torch.zeros(len(marks), 0).long())
        kept, used = [], []
        with _frozen(model), torch.no_grad():
            asked = partial(ask_for_logits, model)
            for found, count in search(asked, images.detach(), labels, marks):
                kept.append(self._within(found, images))
                used.append(count * draws)
        return QueryTrace(tuple(calls), tuple(kept), torch.stack(used))


def _checked(images: Tensor, labels: Tensor) -> Tensor:
    """The labels, where images and labels can be attacked."""
    checks.image_batch(images)
    checks.pixel_values(images)
    return checks.per_image("labels", labels, images)


def places_in_batch(images: Tensor) -> Tensor:
    """What an attack numbers its own random values by, (B,)."""
    part = asked_part()
    return torch.arange(len(images), device=images.device) if part is None else part.places


def random_start(ball: Ball, images: Tensor, seed: int, number: int = 0) -> Tensor:
    """Start number `number` of each image: by the seed and an image's place in the batch alone."""
    draw = Draw(seed, places_in_batch(images))
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
