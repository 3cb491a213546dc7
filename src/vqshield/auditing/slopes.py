"""R13 and R14: have a model's answers a slope that an attack can follow?"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vqshield.auditing.gradients import random_signs
from vqshield.core.seeds import torch_seeded
from vqshield.defended import Defended
from vqshield.defenses import Defense

_TINY = 1e-4  # of the budget: nobody sees it, and a network's answer changes by about as much


class Rescaled(nn.Module):
    """A classifier with its logits divided by a constant, which changes no answer."""

    def __init__(self, classifier: nn.Module, scale: float) -> None:
        super().__init__()
        self.classifier, self.scale = classifier, scale

    def forward(self, images: Tensor) -> Tensor:
        """Logits (B, classes)."""
        logits: Tensor = self.classifier(images)
        return logits / self.scale


@dataclass(frozen=True)
class Saturation:
    """How many answers are so certain that single precision has no slope left.

    Attributes:
        flat: images whose cross-entropy has a gradient of exactly zero.
        images: of how many.
        lead: the first logit less the second, the median of the images.
    """

    flat: int
    images: int
    lead: float


@torch.no_grad()
def saturation(classifier: nn.Module, defense: Defense, images: Tensor) -> Saturation:
    """Of one draw."""
    logits: Tensor = Defended(classifier, defense)(images)
    probabilities = logits.float().softmax(-1)
    certain = (probabilities > 0).sum(-1) == 1
    best = logits.double().topk(min(2, logits.shape[-1]), -1).values
    return Saturation(int(certain.sum()), len(images), float((best[:, 0] - best[:, -1]).median()))


@torch.no_grad()
def jump(classifier: nn.Module, defense: Defense, images: Tensor, *, step: float, seed: int) -> float:
    """How far logits move for a ten thousandth of the budget, as a share of how far they move for all of it:
    the median over images. About a ten thousandth where answers are continuous, about one where noise
    depends on the image's last bits.

    The draw is the same, and torch's random generators start from the same state every time; what the logits
    move by when the same question is asked again is taken off.
    """
    streams, signs = defense.streams(images), random_signs(images, seed=seed)[0]
    model = Defended(classifier, defense)

    def asked(size: float) -> Tensor:
        with torch_seeded(0):
            logits: Tensor = model((images + size * step * signs).clamp(0, 1), streams=streams)
        return logits.double()

    usual = asked(0.0)
    again, slight, whole = ((asked(size) - usual).norm(dim=-1) for size in (0.0, _TINY, 1.0))
    return float(((slight - again).clamp(min=0) / whole.clamp(min=torch.finfo(whole.dtype).tiny)).median())
