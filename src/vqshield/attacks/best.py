"""The best of several candidates per image, judged by exact answers on draws of their own."""

import math

import torch
from torch import Tensor

from vqshield.attacks.losses import errors, margin
from vqshield.models.calling import Model, Part, asking_about, asking_exactly, differ

EARLY = (1 / 12, 1 / 6, 1 / 3, 1 / 2)
"""Shares of a climb's steps after which lost images may leave: of a plain classifier's most are lost soon."""

QUARTERS = (1 / 20, 1 / 4, 1 / 2, 3 / 4, 1.0)
"""The same of a search's queries."""

_SURE_DRAWS = 10  # of a random model: fewer wrong answers in a row may be luck
_SURE_LEAD = 3.0  # logits by which the wrong answers lead, on average, where nothing is left to gain


class Best:
    """Holds, for each image, the candidate that the model got wrong most often so far."""

    def __init__(self, images: Tensor, labels: Tensor, *, judgements: int) -> None:
        self.images, self._labels, self._judgements = images, labels, judgements
        self._errors = torch.full(images.shape[:1], -1.0, dtype=images.dtype, device=images.device)
        self._margins = torch.full_like(self._errors, -torch.inf)
        self.asked = 0
        """How often the model was asked about an image that was considered every time."""

    @torch.no_grad()
    def consider(self, model: Model, candidates: Tensor) -> None:
        """Ask the model about the candidates, and keep those that do better."""
        with asking_exactly():
            logits = [model(candidates) for _ in range(self._judgements)]
        self.asked += len(logits)
        self._keep(candidates, *_judged(logits, self._labels))

    @torch.no_grad()
    def consider_some(self, model: Model, candidates: Tensor, places: Tensor) -> Tensor:
        """The same with candidates (b, q, h, w) for the images in these places alone, (b,).

        A random model is asked for ten draws at least. Returns which of these images are lost, (b,): wrong in
        every draw that their best candidate was judged by, by three logits on average.
        """
        with asking_about(Part(places, len(self.images))), asking_exactly():
            logits = [model(candidates) for _ in range(max(self._judgements, 2))]
            while len(logits) * _draws(logits[0]) < _SURE_DRAWS and differ(*logits[:2]):
                logits.append(model(candidates))
        self.asked += len(logits)
        wrong, margins = _judged(logits, self._labels[places])
        self._keep(
            self.images.index_copy(0, places, candidates.detach()),
            torch.full_like(self._errors, -1.0).index_copy(0, places, wrong),
            torch.full_like(self._margins, -torch.inf).index_copy(0, places, margins),
        )
        return ((self._errors == 1) & (self._margins >= _SURE_LEAD))[places]

    def _keep(self, candidates: Tensor, wrong: Tensor, margins: Tensor) -> None:
        better = (wrong > self._errors) | ((wrong == self._errors) & (margins > self._margins))
        self.images = torch.where(better[:, None, None, None], candidates.detach(), self.images)
        self._errors = torch.where(better, wrong, self._errors)
        self._margins = torch.where(better, margins, self._margins)


def most_asked(judgements: int, draws: int) -> int:
    """How often a model is asked about an image at most that is considered at every one of the QUARTERS, if
    each answer is of that many draws.
    """
    return len(QUARTERS) * max(judgements, 2, math.ceil(_SURE_DRAWS / draws))


def _judged(logits: list[Tensor], labels: Tensor) -> tuple[Tensor, Tensor]:
    """The share of wrong answers, and the mean margin."""
    wrong = torch.stack([errors(each, labels) for each in logits]).mean(0)
    margins = torch.stack([margin(each, labels) for each in logits]).mean(0)
    return wrong, margins


def _draws(logits: Tensor) -> int:
    """How many draws an answer (…, B, classes) is of."""
    return logits[..., 0, 0].numel()
