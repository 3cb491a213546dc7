"""Expectation over transformation (Athalye et al. 2018): a wrapper around a random model.

An attack on the wrapped model follows the average over several draws instead of a single lucky one.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from vqshield import checks

AVERAGES = ("gradients", "logits")


class EOT(nn.Module):
    """Several draws of a random model at once.

    average="gradients" gives the logits of every draw, (draws, B, classes): an attack's loss is then the mean
    of the draws' losses and its gradient the mean of their gradients, as AutoAttack has it. "logits" gives
    the mean logits, (B, classes).
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
        logits = self.model(images.repeat(self.draws, 1, 1, 1))
        per_draw = torch.unflatten(logits, 0, (self.draws, len(images)))
        return per_draw if self.average == "gradients" else per_draw.mean(0)
