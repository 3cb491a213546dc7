"""Attack: subclasses write one method; checks, frozen parameters and the budget are done here for all."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, final

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
    """Searches a ball around each image for one that a model misclassifies.

    An attack of your own is a class with a `ball` and a method `run`. A call checks the images, freezes the
    model's parameters, and guarantees that no image leaves the ball. Invalid settings are refused.

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
    needs_gradients: ClassVar[bool] = True

    @abstractmethod
    def run(self, model: Model, images: Tensor, labels: Tensor) -> Tensor:
        """The adversarial images. Gradients are on; parameters are frozen; the result is projected."""

    def run_dropping(self, model: Model, images: Tensor, labels: Tensor) -> Tensor:
        """As `run`; images that are misclassified for certain may stop early. By default none does."""
        return self.run(model, images, labels)

    @final
    def __call__(self, model: Model, images: Tensor, labels: Tensor, *, drop_lost: bool = False) -> Tensor:
        """Attack every image, those already misclassified too; never leaves the ball or [0, 1].

        Args:
            model: images (B, q, h, w) → logits.
            images: float images in [0, 1].
            labels: their true classes, (B,), int64.
            drop_lost: whether an image takes no more steps once the model misclassifies it for certain: in
                each of ten fresh draws, or once, if it is not random. Other images are not affected.

        Raises:
            InvalidInputError: invalid images or labels; a model whose logits are not finite, or have no
                gradient where the attack needs one.
        """
        labels = _checked(images, labels)
        if len(images) == 0:
            return images.clone()
        with _frozen(model), torch.enable_grad():
            run = self.run_dropping if drop_lost else self.run
            found = run(partial(ask_for_logits, model), images.detach(), labels)
        return self._within(found, images)

    def _within(self, found: Tensor, images: Tensor) -> Tensor:
        """The images of an attack, projected onto the ball."""
        found = self.ball.project(found.detach(), images.detach())
        farthest = float(self.ball.distance(found, images).max())
        if not farthest <= self.ball.eps + _ROUNDING:
            name = type(self).__name__
            raise VqshieldError(f"{name} moved an image by {farthest}, over eps={self.ball.eps}")
        return found


@dataclass(frozen=True)
class QueryTrace:
    """The best images (B, q, h, w) of a query attack after each of several numbers of model calls per image,
    and the calls that each image had used by then, (len(calls), B). Every draw is a call.

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
    """An attack that needs a model's logits but no gradients, and counts its queries.

    One of your own has a method `search`; calls and traces follow from that.

    Example:
        >>> isinstance(vq.attacks.Square(ball=vq.attacks.Linf(8 / 255)), vq.attacks.QueryAttack)
        True
    """

    needs_gradients = False
    queries: int  # the most evaluations of the model in a call of the attack; a trace has marks of its own

    def uncounted_queries(self, draws: int = 1, *, drop_lost: bool = False) -> int:
        """The most evaluations, of so many draws each, that a search makes without counting them in marks."""
        return 0

    @abstractmethod
    def search(
        self, model: Model, images: Tensor, labels: Tensor, marks: Sequence[int]
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """After each of these numbers of evaluations, ascending, the best images and how many evaluations
        each of them took, uncounted ones included, (B,); the search may end at the last one.
        """

    def search_dropping(
        self, model: Model, images: Tensor, labels: Tensor, marks: Sequence[int]
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """As `search`; images that are misclassified for certain may stop early. By default none does."""
        return self.search(model, images, labels, marks)

    @torch.no_grad()
    def run(self, model: Model, images: Tensor, labels: Tensor) -> Tensor:
        return list(self.search(model, images, labels, (self.queries,)))[-1][0]

    @torch.no_grad()
    def run_dropping(self, model: Model, images: Tensor, labels: Tensor) -> Tensor:
        return list(self.search_dropping(model, images, labels, (self.queries,)))[-1][0]

    @final
    def trace(
        self, model: Model, images: Tensor, labels: Tensor, calls: Sequence[int], *, drop_lost: bool = False
    ) -> QueryTrace:
        """Search once, and return the best images after each of these numbers of calls.

        Args:
            model, images, labels: as of a call of the attack; each draw of an EOT counts as a call.
            calls: ascending; the last one replaces `queries`.
            drop_lost: as of a call. No image stops if judging it would take over a tenth of the first calls.

        Example:
            >>> attack = vq.attacks.RayS(ball=vq.attacks.Linf(8 / 255))
            >>> attack.trace(classifier, images, labels, calls=(20, 60)).used.amax(1).tolist()
            [20, 60]
        """
        labels = _checked(images, labels)
        draws = draws_a_call(model)
        uncounted, search = self.uncounted_queries(draws), self.search
        judgements = self.uncounted_queries(draws, drop_lost=True)
        if drop_lost and calls and 10 * draws * judgements <= calls[0]:
            uncounted, search = judgements, self.search_dropping
        marks = [number // draws - uncounted for number in calls]
        if not marks or sorted({*calls}) != list(calls) or marks[0] < 2:
            raise InvalidInputError(
                f"calls={tuple(calls)} should ascend, the first at least {(2 + uncounted) * draws}, for "
                f"{type(self).__name__} with {draws} draws a query"
            )
        if len(images) == 0:
            return QueryTrace(tuple(calls), (images.clone(),) * len(marks), torch.zeros(len(marks), 0).long())
        kept, used = [], []
        with _frozen(model), torch.no_grad():
            for found, count in search(partial(ask_for_logits, model), images.detach(), labels, marks):
                kept.append(self._within(found, images))
                used.append(count * draws)
        return QueryTrace(tuple(calls), tuple(kept), torch.stack(used))


def _checked(images: Tensor, labels: Tensor) -> Tensor:
    """The labels, if images and labels are valid."""
    checks.image_batch(images)
    checks.pixel_values(images)
    return checks.per_image("labels", labels, images)


def check_counts(attack: Attack, *counts: str) -> None:
    """Refuse counts of an attack's settings below 1, and a seed outside 64 bits."""
    for name in counts:
        checks.whole(name, getattr(attack, name), least=1)
    checks.whole("seed", getattr(attack, "seed", 0), least=0, below=2**64)


def places_in_batch(images: Tensor) -> Tensor:
    """The numbers of the images' random values, (B,): their places in the whole batch."""
    part = asked_part()
    return torch.arange(len(images), device=images.device) if part is None else part.places


def random_start(ball: Ball, images: Tensor, seed: int, number: int = 0) -> Tensor:
    """Random start `number` of each image; it depends only on the seed and the image's place in the batch."""
    draw = Draw(seed, places_in_batch(images))
    values = images[0].numel()
    return ball.start(images, draw.uniforms(Stage.ATTACK_START, number * values, values).view_as(images))


@contextmanager
def _frozen(model: Model) -> Iterator[None]:
    """Freeze the parameters, and restore buffers in the end: a model in training mode changes its running
    statistics. Buffers outside its state are left to the model.
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
