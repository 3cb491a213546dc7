"""The best of several candidates per image, judged by exact logits on draws of their own; and early stops."""

import math
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

import torch
from torch import Tensor

from vqshield.attacks.losses import errors, margin
from vqshield.models.calling import Model, Part, asking_about, asking_exactly, differ

EARLY = (1 / 12, 1 / 6, 1 / 3, 1 / 2)
"""Shares of a climb's steps after which images may stop: a plain classifier loses most of them soon."""

QUARTERS = (1 / 20, 1 / 4, 1 / 2, 3 / 4, 1.0)
"""The same of a search's queries."""

_SURE_DRAWS = 10  # of a random model: fewer misclassified draws in a row may be luck
_SURE_LEAD = 3.0  # logits by which the wrong classes lead, on average, where nothing more can be gained


class Best:
    """For each image the candidate that the model misclassified most often, and which images are attacked.

    Args:
        images: (B, q, h, w), the first candidates.
        labels: their true classes, (B,).
        judgements: evaluations of the model for each candidate.
        drop_lost: whether images may stop that are misclassified for certain: in every draw, ten or more of a
            random model, by three logits on average.
    """

    def __init__(self, images: Tensor, labels: Tensor, *, judgements: int, drop_lost: bool = False) -> None:
        self.images, self._labels = images, labels
        self._judgements, self._drop_lost = judgements, drop_lost
        self._errors = torch.full(images.shape[:1], -1.0, dtype=images.dtype, device=images.device)
        self._margins = torch.full_like(self._errors, -torch.inf)
        self.places = torch.arange(len(images), device=images.device)
        """Places (b,) of the images that are still attacked."""
        self.asked = 0
        """How often an image was judged that is still attacked."""

    def attacked(self) -> AbstractContextManager[None]:
        """A context where models get the images that are still attacked, and no others."""
        return asking_about(Part(self.places, len(self.images)))

    def stop(self, stay: Tensor) -> None:
        """Attack only those of the attacked images (b,) further that stay."""
        self.places = self.places[stay]

    @torch.no_grad()
    def consider(self, model: Model, candidates: Tensor) -> Tensor:
        """Judge candidates (b, q, h, w) for the attacked images. Returns which of these should stay, (b,)."""
        with self.attacked(), asking_exactly():
            logits = [model(candidates) for _ in range(max(self._judgements, 1 + self._drop_lost))]
            while self._drop_lost and _draws(logits) < _SURE_DRAWS and differ(*logits[:2]):
                logits.append(model(candidates))
        self.asked += len(logits)
        labels = self._labels[self.places]
        wrong = self._of_all(torch.stack([errors(draw, labels) for draw in logits]).mean(0), -1.0)
        margins = self._of_all(torch.stack([margin(draw, labels) for draw in logits]).mean(0), -torch.inf)
        better = (wrong > self._errors) | ((wrong == self._errors) & (margins > self._margins))
        moved = self.images.index_copy(0, self.places, candidates.detach())
        self.images = torch.where(better[:, None, None, None], moved, self.images)
        self._errors = torch.where(better, wrong, self._errors)
        self._margins = torch.where(better, margins, self._margins)
        lost = (self._errors == 1) & (self._margins >= _SURE_LEAD)
        return ~(lost & self._drop_lost)[self.places]

    def _of_all(self, values: Tensor, others: float) -> Tensor:
        """Values (b,) of the attacked images in their places, (B,)."""
        return values.new_full(self._labels.shape, others).index_copy(0, self.places, values)


def most_judgements(judgements: int, draws: int) -> int:
    """The most judgements per image at all QUARTERS, if each evaluation is of that many draws."""
    return len(QUARTERS) * max(judgements, 2, math.ceil(_SURE_DRAWS / draws))


def _draws(logits: list[Tensor]) -> int:
    """How many draws some evaluations (…, B, classes) are of."""
    return len(logits) * logits[0][..., 0, 0].numel()


class Search(Protocol):
    """Queries `used` per image, `advance` to so many, the best images `found`, `keep` some images."""

    @property
    def used(self) -> int | Tensor: ...

    def advance(self, stop: int) -> None: ...

    def found(self) -> Tensor: ...

    def keep(self, some: Tensor) -> None: ...


def search_dropping(
    search: Search, best: Best, model: Model, marks: Sequence[int]
) -> Iterator[tuple[Tensor, Tensor]]:
    """As `QueryAttack.search_dropping`: after a twentieth and each quarter of the evaluations, misclassified
    images stop; the best images of all these times compete in the end.
    """
    last, used = marks[-1], torch.zeros_like(best.places)
    looks = {math.ceil(share * last) for share in QUARTERS}
    for mark in sorted({*marks, *looks}):
        if len(best.places):
            with best.attacked():
                search.advance(mark)
        if len(best.places) and mark in looks:
            stay = best.consider(model, search.found())
            used[best.places] = search.used + best.asked
            best.stop(stay)
            search.keep(stay)
        if mark in marks:
            used[best.places] = search.used + best.asked
            images = best.images
            yield images if mark == last else images.index_copy(0, best.places, search.found()), used
