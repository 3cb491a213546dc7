"""Expectation over transformation (Athalye et al. 2018): a wrapper around a random model.

An attack on the wrapped model follows the average over several draws instead of a single lucky one.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from vqshield.core import checks
from vqshield.models.calling import ask, check_rows

AVERAGES = ("gradients", "logits")


class EOT(nn.Module):
    """Several draws of a random model at once.

    Args:
        model: images → logits, different in every call.
        draws: how many are averaged.
        average: "gradients" gives the logits of every draw, (draws, B, classes): an attack's loss is then the
            mean of the draws' losses and its gradient the mean of their gradients, as AutoAttack has it.
            "logits" gives the mean logits, (B, classes).

    Raises:
        InvalidInputError: a setting that cannot work.

    Example:
        >>> model = vq.defend(classifier, "swrd", seed=0)
        >>> vq.attacks.EOT(model, draws=3)(images).shape
        torch.Size([3, 8, 10])
        >>> attack = vq.attacks.PGD(ball=vq.attacks.Linf(8 / 255), steps=2)
        >>> attack(vq.attacks.EOT(model, draws=3), images, labels).shape
        torch.Size([8, 3, 32, 32])
    """

    def __init__(
        self, model: Callable[[Tensor], Tensor], *, draws: int = 10, average: str = "gradients"
    ) -> None:
        super().__init__()
        self.model = model
        self.draws = checks.whole("draws", draws, least=1)
        self.average = checks.one_of("average", average, AVERAGES)
        # As the model is: some libraries put a wrapper, and all in it, back into the mode they found it in.
        self.training = getattr(model, "training", False)

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
