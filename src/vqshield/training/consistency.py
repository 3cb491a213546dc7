"""A loss that makes draws of a random defense agree: what a certificate of their vote rewards."""

import torch
from torch import Tensor
from torch.nn import functional as F

from vqshield.core import checks
from vqshield.core.errors import InvalidInputError

_SMALLEST = 1e-20  # no logarithm of 0


def consistency_loss(
    logits: Tensor,
    labels: Tensor,
    *,
    agreement: float = 10.0,
    entropy: float = 0.5,
    label_smoothing: float = 0.0,
) -> Tensor:
    """mean cross-entropy + agreement·mean KL(F̂ ‖ F_i) + entropy·H(F̂), F̂ the mean of the draws' softmax F_i.

    Jeong and Shin, "Consistency Regularization for Certified Robustness of Smoothed Classifiers" (2020), with
    λ = agreement and η = entropy. The middle term is 0 where all draws agree; the last one rewards votes that
    are clear. With both at 0 it is training behind the defense with several draws a step.

    Args:
        logits: (draws, B, classes) of two draws or more of the same images.
        labels: (B,), int64.
        agreement: the paper takes 10 to 20 for Gaussian noise of 0.25.
        entropy: the paper's is 0.5.
        label_smoothing: of the cross-entropy.

    Returns:
        The loss, averaged over the images.

    Raises:
        InvalidInputError: logits or labels of another shape, or weights that cannot be.
    """
    if logits.dim() != 3 or len(logits) < 2 or labels.shape != logits.shape[1:2]:
        raise InvalidInputError(
            f"logits of shape {tuple(logits.shape)} and labels of shape {tuple(labels.shape)} should be "
            "(draws, B, classes), two draws or more, and (B,)"
        )
    for name, value in (("agreement", agreement), ("entropy", entropy), ("label_smoothing", label_smoothing)):
        checks.real(name, value)
    draws = len(logits)
    wrong = F.cross_entropy(logits.flatten(0, 1), labels.repeat(draws), label_smoothing=label_smoothing)
    if agreement == 0 and entropy == 0:
        return wrong
    logs = logits.log_softmax(-1)
    mean = logs.exp().mean(0)  # F̂ (B, classes)
    mean_log = torch.log(mean.clamp(min=_SMALLEST))
    spread = (mean * (mean_log - logs.mean(0))).sum(-1)  # mean over the draws of KL(F̂ ‖ F_i)
    doubt = -(mean * mean_log).sum(-1)
    return wrong + (agreement * spread + entropy * doubt).mean()
