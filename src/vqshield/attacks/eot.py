"""Expectation over transformation (Athalye et al. 2018): an attack follows the average over several draws."""

import torch
from torch import Tensor, nn

from vqshield.core import checks
from vqshield.models.calling import Model, ask, check_rows

AVERAGES = ("gradients", "logits")


class EOT(nn.Module):
    """Several draws of a random model at once.

    Args:
        model: images → logits, different in every call.
        draws: how many are averaged.
        average: "gradients" gives the logits of every draw, (draws, B, classes), so that an attack's
            loss and gradient are means over draws. "logits" gives the mean logits, (B, classes).

    Example:
        >>> model = vq.defend(classifier, "swrd", seed=0)
        >>> vq.attacks.EOT(model, draws=3)(images).shape
        torch.Size([3, 8, 10])
        >>> attack = vq.attacks.PGD(ball=vq.attacks.Linf(8 / 255), steps=2)
        >>> attack(vq.attacks.EOT(model, draws=3), images, labels).shape
        torch.Size([8, 3, 32, 32])
    """

    def __init__(self, model: Model, *, draws: int = 10, average: str = "gradients") -> None:
        super().__init__()
        self.model = model
        self.draws = checks.whole("draws", draws, least=1)
        self.average = checks.one_of("average", average, AVERAGES)
        self.training = getattr(model, "training", False)  # some libraries restore the mode of a wrapper

    def forward(self, images: Tensor) -> Tensor:
        """All draws in one pass through the model, so that they fill the device."""
        logits = ask(self.model, images.repeat(self.draws, 1, 1, 1))
        check_rows(logits, self.draws * len(images))
        per_draw = torch.unflatten(logits, 0, (self.draws, len(images)))
        return per_draw if self.average == "gradients" else per_draw.mean(0)


def draws_a_call(model: object) -> int:
    """How many draws one evaluation of a model takes: those of every EOT in it, wrapped or not."""
    draws = 1
    while isinstance(model, nn.Module):
        draws *= model.draws if isinstance(model, EOT) else 1
        model = getattr(model, "model", None)
    return draws
