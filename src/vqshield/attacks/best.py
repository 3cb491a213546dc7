"""The best of several candidates per image, judged on draws of their own."""

import torch
from torch import Tensor

from vqshield.attacks.losses import errors, margin
from vqshield.models import Model


class Best:
    """Holds, for each image, the candidate that the model got wrong most often so far."""

    def __init__(self, images: Tensor, labels: Tensor, *, judgements: int) -> None:
        self.images, self._labels, self._judgements = images, labels, judgements
        self._errors = torch.full(images.shape[:1], -1.0, dtype=images.dtype, device=images.device)
        self._margins = torch.full_like(self._errors, -torch.inf)

    @torch.no_grad()
    def consider(self, model: Model, candidates: Tensor) -> None:
        """Ask the model about the candidates, and keep those that do better."""
        logits = [model(candidates) for _ in range(self._judgements)]
        wrong = torch.stack([errors(each, self._labels) for each in logits]).mean(0)
        margins = torch.stack([margin(each, self._labels) for each in logits]).mean(0)
        better = (wrong > self._errors) | ((wrong == self._errors) & (margins > self._margins))
        self.images = torch.where(better[:, None, None, None], candidates.detach(), self.images)
        self._errors = torch.where(better, wrong, self._errors)
        self._margins = torch.where(better, margins, self._margins)
